//! The token cache: texts and their tokens, so that the same text is not encoded twice. Entries hold ids, not Python objects: a cache
//! hit builds a new list, which the caller may change.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use lz_core::Handle;
use lz_core::fork::Mutex;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::text::{PyTokenizer, Texts};
use crate::token_encode::{EncodedTexts, encode};
use crate::token_lists::Lists;

/// The tokens of a text.
struct Row {
    ids: Box<[i32]>,
    offsets: Box<[i64]>,
}

impl Row {
    fn of(encoded: &EncodedTexts, text: usize) -> Row {
        Row { ids: encoded.ids(text).into(), offsets: encoded.offsets(text).into() }
    }

    fn is(&self, encoded: &EncodedTexts, text: usize) -> bool {
        *self.ids == *encoded.ids(text) && *self.offsets == *encoded.offsets(text)
    }
}

/// What entries that may be shared have in common: model, digest, special tokens, offsets.
type Key = (String, [u8; 32], bool, bool);

/// The entries of one tokenizer, one model and one set of encoding options.
#[derive(Default)]
struct Space {
    rows: HashMap<Arc<str>, Arc<Row>, RandomState>,
    /// Texts in order of insertion: the oldest entry is evicted.
    order: VecDeque<Arc<str>>,
    hits: u64,
    /// Cache hits to validate, as a sum of rates.
    due: f64,
}

impl Space {
    /// Whether this cache hit is validated, at the configured rates.
    fn validates(&mut self, [initial, warmup, stable]: [f64; 3]) -> bool {
        self.due += match self.hits {
            0..100 => initial,
            100..1100 => warmup,
            _ => stable,
        };
        self.hits += 1;
        let due = self.due >= 1.0 - 1e-9;
        if due {
            self.due -= 1.0;
        }
        due
    }

    fn insert(&mut self, text: &str, row: Row, max_entries: usize) {
        if let Some(present) = self.rows.get_mut(text) {
            *present = Arc::new(row);
            return;
        }
        let text: Arc<str> = text.into();
        self.order.push_back(Arc::clone(&text));
        self.rows.insert(text, Arc::new(row));
        while self.rows.len() > max_entries {
            let Some(oldest) = self.order.pop_front() else { break };
            self.rows.remove(&oldest);
        }
    }
}

#[derive(Default)]
struct State {
    spaces: HashMap<Key, Space>,
    /// Fractions of the first 100 cache hits, of the next 1000, and of the others that are validated.
    rates: [f64; 3],
    hits: u64,
    misses: u64,
    validations: u64,
    mismatches: u64,
}

/// Where the tokens of a text are.
enum Source {
    Cached(Arc<Row>),
    /// The number of the text among those that are encoded.
    Encoded(usize),
}

/// The texts of a call in the cache.
#[derive(Default)]
struct Found {
    /// One per text.
    sources: Vec<Source>,
    /// Cache misses: numbers of texts.
    missing: Vec<usize>,
    /// Cache hits that are validated. They are encoded after the misses.
    checked: Vec<usize>,
}

/// A bounded cache of encoded texts.
#[pyclass(name = "TokenCache", module = "layerzero._native", frozen)]
pub struct PyTokenCache {
    max_entries: usize,
    max_characters: usize,
    /// No Python code runs while this is locked.
    state: Mutex<State>,
}

#[pymethods]
impl PyTokenCache {
    #[new]
    fn new(max_entries: usize, max_characters: usize) -> PyTokenCache {
        PyTokenCache { max_entries, max_characters, state: Mutex::default() }
    }

    /// Sets the fractions of cache hits that are validated.
    fn set_rates(&self, initial: f64, warmup: f64, stable: f64) {
        self.state.lock().rates = [initial, warmup, stable];
    }

    /// Hits, misses, validations, mismatches and entries.
    fn counters(&self) -> (u64, u64, u64, u64, usize) {
        let state = self.state.lock();
        let entries = state.spaces.values().map(|space| space.rows.len()).sum();
        (state.hits, state.misses, state.validations, state.mismatches, entries)
    }

    /// Removes all entries.
    fn clear(&self) {
        self.state.lock().spaces.clear();
    }

    /// Stores ids for a text without a check: for tests.
    fn put(
        &self,
        model: String,
        tokenizer: &Bound<'_, PyTokenizer>,
        add_special_tokens: bool,
        text: &str,
        ids: Vec<i32>,
    ) {
        let key = (model, tokenizer.get().handle().digest(), add_special_tokens, false);
        let row = Row { ids: ids.into(), offsets: Box::default() };
        self.state.lock().spaces.entry(key).or_default().insert(text, row, self.max_entries);
    }

    /// The ids of texts as a list per text, and with `return_offsets` also the byte ranges.
    fn encode<'py>(
        &self,
        texts: &Bound<'py, PyList>,
        tokenizer: &Bound<'py, PyTokenizer>,
        model: String,
        add_special_tokens: bool,
        return_offsets: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = texts.py();
        let encode =
            |texts: &Bound<'py, PyList>| encode(texts, tokenizer, add_special_tokens, return_offsets);
        let strings = Texts::new("tokenize.encode", "texts", texts.as_any())?;
        let strings = strings.as_strs();
        let key = (model, tokenizer.get().handle().digest(), add_special_tokens, return_offsets);
        let cached: Vec<bool> =
            texts.iter().zip(&strings).map(|(text, utf8)| self.caches(&text, utf8)).collect();

        let found = self.look_up(&key, &strings, &cached);
        let encoded = if found.missing.is_empty() && found.checked.is_empty() {
            EncodedTexts::default()
        } else if found.missing.len() == strings.len() {
            encode(texts)?
        } else {
            let chosen = found.missing.iter().chain(&found.checked).map(|at| texts.get_item(*at));
            encode(&PyList::new(py, chosen.collect::<PyResult<Vec<_>>>()?)?)?
        };
        let is_wrong = |(number, at): (usize, &usize)| match &found.sources[*at] {
            Source::Cached(row) => !row.is(&encoded, found.missing.len() + number),
            Source::Encoded(_) => false,
        };
        if found.checked.iter().enumerate().any(is_wrong) {
            self.remove(py, &key)?;
            let sources: Vec<Source> = (0..strings.len()).map(Source::Encoded).collect();
            return output(py, &sources, &encode(texts)?, return_offsets);
        }
        let new = found.missing.iter().enumerate().filter(|(_, at)| cached[**at]);
        self.insert(key, new.map(|(number, at)| (strings[*at], Row::of(&encoded, number))));
        output(py, &found.sources, &encoded, return_offsets)
    }
}

impl PyTokenCache {
    /// Whether a text is short enough to be cached.
    fn caches(&self, text: &Bound<'_, PyAny>, utf8: &str) -> bool {
        let few_bytes = utf8.len() <= self.max_characters;
        self.max_entries > 0 && (few_bytes || text.len().is_ok_and(|count| count <= self.max_characters))
    }

    fn look_up(&self, key: &Key, texts: &[&str], cached: &[bool]) -> Found {
        let mut found = Found { sources: Vec::with_capacity(texts.len()), ..Found::default() };
        let mut state = self.state.lock();
        let rates = state.rates;
        let mut space = state.spaces.get_mut(key);
        for (at, text) in texts.iter().enumerate() {
            let row =
                space.as_deref().filter(|_| cached[at]).and_then(|space| space.rows.get(*text)).cloned();
            match (row, &mut space) {
                (Some(row), Some(space)) => {
                    if space.validates(rates) {
                        found.checked.push(at);
                    }
                    found.sources.push(Source::Cached(row));
                }
                _ => {
                    found.sources.push(Source::Encoded(found.missing.len()));
                    found.missing.push(at);
                }
            }
        }
        state.hits += (texts.len() - found.missing.len()) as u64;
        state.misses += found.missing.len() as u64;
        state.validations += found.checked.len() as u64;
        found
    }

    fn insert<'t>(&self, key: Key, new: impl Iterator<Item = (&'t str, Row)>) {
        let mut new = new.peekable();
        if new.peek().is_some() {
            let mut state = self.state.lock();
            let space = state.spaces.entry(key).or_default();
            for (text, row) in new {
                space.insert(text, row, self.max_entries);
            }
        }
    }

    /// Removes the entries of a tokenizer of which one was wrong.
    #[cold]
    fn remove(&self, py: Python<'_>, key: &Key) -> PyResult<()> {
        {
            let mut state = self.state.lock();
            state.mismatches += 1;
            state.spaces.remove(key);
        }
        let digest: String = key.1[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "cached tokens of tokenizer {digest} differ from a fresh encoding; its cache entries were removed"
        );
        let text = std::ffi::CString::new(text).unwrap_or_default();
        // The caller of `tokenize`.
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 3)
    }
}

/// The rows of texts as lists: ids, or a tuple of ids and byte ranges.
fn output<'py>(
    py: Python<'py>,
    sources: &[Source],
    encoded: &EncodedTexts,
    return_offsets: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let mut lists = Lists::new();
    let ids = lists.rows(py, sources, |lists, source| match source {
        Source::Cached(row) => lists.ids(py, &row.ids),
        Source::Encoded(number) => lists.ids(py, encoded.ids(*number)),
    })?;
    if !return_offsets {
        return Ok(ids.into_any());
    }
    let ranges = lists.rows(py, sources, |lists, source| match source {
        Source::Cached(row) => lists.ranges(py, &row.offsets),
        Source::Encoded(number) => lists.ranges(py, encoded.offsets(*number)),
    })?;
    Ok((ids, ranges).into_pyobject(py)?.into_any())
}
