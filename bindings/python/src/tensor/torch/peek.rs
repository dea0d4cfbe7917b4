//! Two facts about a tensor that torch tells only through attributes, each of which costs as much as a whole call of ours:
//! whether its values are still to be negated, and whether it can want a gradient.
//!
//! Where these facts are in memory is not promised by torch. So it is not assumed: it is learned from tensors of the running
//! torch, and where what is found is not exactly what must be there, nothing is looked at and the attributes are asked.

use pyo3::Borrowed;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Where the two facts are.
pub struct Peek {
    /// How many words a tensor's record has, as far as it is looked through.
    pub(super) words: usize,
    /// Word of a tensor's record that is 0 if nothing of autograd is known of it.
    pub(super) autograd: usize,
    /// Word of the record that holds its dispatch keys.
    pub(super) keys: usize,
    /// The key of views that are still to be negated.
    negative: u64,
}

/// Words of a tensor's record: it has not been smaller in any torch 2, and up to 2.11 at least it had one more.
const LENGTHS: [usize; 2] = [WORDS - 1, WORDS];
/// The most words of a record.
pub(super) const WORDS: usize = 23;

/// So many words of a tensor's record, and 0 behind them. The first field of the object behind its head points there, which is
/// checked.
pub(super) fn record(tensor: &Bound<'_, PyAny>, words: usize) -> Option<[u64; WORDS]> {
    let told: usize = tensor.getattr("_cdata").ok()?.extract().ok()?;
    // SAFETY: a tensor object is larger than its head and one pointer; torch itself tells what the pointer must be; the record
    // behind it has at least as many words as are asked for.
    unsafe {
        let found = *tensor.as_ptr().byte_add(size_of::<ffi::PyObject>()).cast::<usize>();
        if found != told || told == 0 {
            return None;
        }
        let first = std::ptr::with_exposed_provenance::<u64>(told);
        Some(std::array::from_fn(|at| if at < words { *first.add(at) } else { 0 }))
    }
}

impl Peek {
    /// Learns from tensors where to look. A longer record is taken for one only where the shorter one lacks what must be there,
    /// so that nothing behind a record is read.
    pub fn learn(torch: &Bound<'_, PyAny>) -> Option<Peek> {
        LENGTHS.into_iter().find_map(|words| Peek::learn_from(torch, words))
    }

    fn learn_from(torch: &Bound<'_, PyAny>, words: usize) -> Option<Peek> {
        let py = torch.py();
        let make = |sizes: (i64, i64), dtype: &str, wants: bool| -> PyResult<Bound<'_, PyAny>> {
            let keywords = PyDict::new(py);
            keywords.set_item("dtype", torch.getattr(dtype)?)?;
            keywords.set_item("requires_grad", wants)?;
            torch.call_method("empty", (sizes,), Some(&keywords))
        };
        let mut autograd = (0..WORDS).collect::<Vec<_>>();
        let mut keys: Vec<(usize, u64)> = Vec::new();
        // All of them stay, so that no record lies where an earlier one lay.
        let mut samples = Vec::new();
        let rounds = [((2, 3), "float32"), ((4, 1), "float64"), ((1, 5), "float32"), ((3, 3), "float64")];
        for (round, (sizes, dtype)) in rounds.into_iter().enumerate() {
            let plain = make(sizes, dtype, false).ok()?;
            let wanting = make(sizes, dtype, true).ok()?;
            let negated = torch.call_method1("_neg_view", (&plain,)).ok()?;
            let detached = wanting.call_method0("detach").ok()?;
            let complex = make(sizes, "complex64", false).ok()?;
            let conjugated = complex.call_method0("conj").ok()?;
            let both = torch.call_method1("_neg_view", (&conjugated,)).ok()?;
            let tensors = [plain, wanting, negated, detached, complex, conjugated, both];
            let mut records = [[0; WORDS]; 7];
            for (found, tensor) in records.iter_mut().zip(&tensors) {
                *found = record(tensor, words)?;
            }
            samples.push(tensors);
            let [plain, wanting, negated, detached, complex, conjugated, both] = records;
            autograd.retain(|&word| plain[word] == 0 && detached[word] == 0 && wanting[word] != 0);
            // One bit that only the negated one has, in a word that is otherwise the same for all that are not complex. What a
            // record leaves unused may look so by chance; among dispatch keys is one for conjugates too, and a view can have both.
            let is_key = |word: usize, bit: u64| {
                let conjugate = complex[word] ^ conjugated[word];
                bit.count_ones() == 1
                    && plain[word] & bit == 0
                    && plain[word] != 0
                    && plain[word] == wanting[word]
                    && plain[word] == detached[word]
                    && conjugate.count_ones() == 1
                    && conjugate != bit
                    && complex[word] & (conjugate | bit) == 0
                    && both[word] == complex[word] | conjugate | bit
            };
            let found = (0..WORDS).map(|word| (word, plain[word] ^ negated[word]));
            let found: Vec<(usize, u64)> = found.filter(|&(word, bit)| is_key(word, bit)).collect();
            if round == 0 {
                keys = found;
            } else {
                keys.retain(|one| found.contains(one));
            }
        }
        match (autograd.as_slice(), keys.as_slice()) {
            (&[autograd], &[(keys, negative)]) => Some(Peek { words, autograd, keys, negative }),
            _ => None,
        }
    }

    /// Whether a tensor's values are still to be negated, and whether it can want a gradient.
    ///
    /// # Safety
    /// The object is a tensor of the torch that was learned from.
    #[inline]
    pub unsafe fn look(&self, tensor: Borrowed<'_, '_, PyAny>) -> (bool, bool) {
        // SAFETY: every tensor object has this form; it was checked on several.
        unsafe {
            let record = *tensor.as_ptr().byte_add(size_of::<ffi::PyObject>()).cast::<*const u64>();
            (*record.add(self.keys) & self.negative != 0, *record.add(self.autograd) != 0)
        }
    }
}
