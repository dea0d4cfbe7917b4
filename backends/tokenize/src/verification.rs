//! Verifies that a candidate is equal to a tokenizer's definition. Its structure is checked when it is built. Before its first use it is
//! compared with the definition on probe texts, and on every code point if it has its own Unicode tables. The latter takes seconds, so
//! a candidate that is only listed, because a native kernel would be used, is compared on recently assigned code points only.
//! Afterwards a decreasing share of real texts is compared.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lz_core::{Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use crate::byte_bpe::ByteBpe;
use crate::code_points;
use crate::coder::{Coder, Encoded, EqualityTest, encode_by_definition, not_equal};
use crate::definition::{check_ids, model_kind, other_model};
use crate::external::{GithubBpe, HfTokenizers, HfTokenizers1, Tiktoken};
use crate::probe_texts;
use crate::sentencepiece::SentencePiece;
use crate::template::{self, Template};
use crate::verification_cache;
use crate::words::{CharBpe, Unigram, WordPiece, WordTokenizer};

/// A candidate that is verified equal to the definition.
pub struct Verified<C> {
    /// The candidate.
    pub coder: C,
    /// Why it may not be used for decoding, if it may not.
    decoding: Option<Reason>,
    /// Number of encode calls.
    calls: AtomicU64,
    /// Set when it differed from the definition on a real text; it is never used again.
    revoked: OnceLock<Reason>,
}

/// A lazily verified candidate, or the reason why it may not be used.
pub struct Slot<C> {
    /// The candidate, built and compared on probe texts.
    probed: OnceLock<Result<Verified<C>, Reason>>,
    /// The outcome of the comparison on all code points.
    code_points: OnceLock<Result<(), Reason>>,
}

impl<C> Default for Slot<C> {
    fn default() -> Slot<C> {
        Slot { probed: OnceLock::new(), code_points: OnceLock::new() }
    }
}

/// The candidates of one tokenizer and the data that verifies them.
#[derive(Default)]
pub struct Prepared {
    byte_bpe: Slot<ByteBpe>,
    word_piece: Slot<WordTokenizer<WordPiece>>,
    unigram: Slot<WordTokenizer<Unigram>>,
    char_bpe: Slot<WordTokenizer<CharBpe>>,
    sentencepiece: Slot<SentencePiece>,
    hf_tokenizers: Slot<HfTokenizers>,
    hf_tokenizers_1: Slot<HfTokenizers1>,
    tiktoken: Slot<Tiktoken>,
    github_bpe: Slot<GithubBpe>,
    probes: OnceLock<Vec<Probe>>,
    code_point_hashes: code_points::ExpectedHashes,
    /// The parsed definition while several candidates are built.
    parsed: Mutex<Option<Arc<Value>>>,
    /// Set when the preferred kernel is built.
    ready: OnceLock<()>,
    /// The model kind, set when the definition is first parsed.
    model: OnceLock<&'static str>,
    /// The template of the post-processor, for batches.
    template: OnceLock<Result<Template, String>>,
}

impl Prepared {
    /// The parsed definition.
    fn definition(&self, tokenizer: &Tokenizer) -> Result<Arc<Value>, Reason> {
        let shared = self.parsed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(shared) = shared {
            return Ok(shared);
        }
        let parsed = tokenizer.parsed();
        parsed
            .map(Arc::new)
            .map_err(|error| Reason::new(ReasonCode::TokenizerInvalid).message(error.to_string()))
    }
}

/// Parses the definition once for all candidates that `work` builds.
pub fn with_parsed_definition<T>(tokenizer: &Tokenizer, work: impl FnOnce() -> T) -> T {
    let Some(prepared) = tokenizer.prepared(Prepared::default) else { return work() };
    let set = |parsed| *prepared.parsed.lock().unwrap_or_else(PoisonError::into_inner) = parsed;
    set(prepared.definition(tokenizer).ok());
    let done = work();
    set(None);
    prepared.ready.get_or_init(|| ());
    done
}

/// Whether the preferred kernel of a tokenizer is built.
pub fn is_prepared(tokenizer: &Tokenizer) -> bool {
    tokenizer.prepared(Prepared::default).is_none_or(|prepared| prepared.ready.get().is_some())
}

/// The template of a tokenizer's post-processor; a message if it is not supported.
pub fn template_of(tokenizer: &Tokenizer) -> Result<Template, String> {
    let read = || template::of_definition(tokenizer.json());
    match tokenizer.prepared(Prepared::default) {
        Some(prepared) => prepared.template.get_or_init(read).clone(),
        None => read(),
    }
}

/// A coder with a slot in [`Prepared`].
pub trait Candidate: Coder {
    /// Its slot.
    fn slot(prepared: &Prepared) -> &Slot<Self>;
}

macro_rules! candidates {
    ($($kind:ty => $slot:ident),* $(,)?) => {
        $(impl Candidate for $kind {
            fn slot(prepared: &Prepared) -> &Slot<Self> {
                &prepared.$slot
            }
        })*
    };
}

candidates! {
    ByteBpe => byte_bpe,
    WordTokenizer<WordPiece> => word_piece,
    WordTokenizer<Unigram> => unigram,
    WordTokenizer<CharBpe> => char_bpe,
    SentencePiece => sentencepiece,
    HfTokenizers => hf_tokenizers,
    HfTokenizers1 => hf_tokenizers_1,
    Tiktoken => tiktoken,
    GithubBpe => github_bpe,
}

/// A text and the results of the definition.
struct Probe {
    text: String,
    special: bool,
    expected: Encoded,
    decoded: [String; 2],
}

/// The candidate for a tokenizer, built and verified on first use, or the reason why it may not be used.
pub fn verified<C: Candidate>(tokenizer: &Tokenizer) -> Result<&Verified<C>, Reason> {
    let (prepared, verified) = probed::<C>(tokenizer)?;
    let check = || check_code_points(&verified.coder, tokenizer, prepared);
    C::slot(prepared).code_points.get_or_init(check).clone()?;
    Ok(verified)
}

/// Why a candidate may not be used for a tokenizer, if it may not.
///
/// While a native kernel is verified for the tokenizer, the candidate is not compared on all code points: it would run only after a
/// failure or if it is requested, and [`verified`] compares it before it runs.
pub fn objection<C: Candidate>(tokenizer: &Tokenizer, decodes: bool) -> Option<Reason> {
    let outcome = match probed::<C>(tokenizer) {
        Ok((prepared, listed))
            if C::EQUALITY_TEST == EqualityTest::CodePoints
                && C::slot(prepared).code_points.get().is_none()
                && has_native_kernel(tokenizer, decodes) =>
        {
            Ok(listed)
        }
        _ => verified::<C>(tokenizer),
    };
    match outcome {
        Err(reason) => Some(reason),
        Ok(verified) if decodes => verified.decoding_objection(),
        Ok(_) => None,
    }
}

/// Whether a native kernel is verified for a tokenizer.
fn has_native_kernel(tokenizer: &Tokenizer, decodes: bool) -> bool {
    objection::<ByteBpe>(tokenizer, decodes).is_none()
        || objection::<WordTokenizer<WordPiece>>(tokenizer, decodes).is_none()
        || objection::<WordTokenizer<Unigram>>(tokenizer, decodes).is_none()
        || objection::<WordTokenizer<CharBpe>>(tokenizer, decodes).is_none()
}

/// The candidate for a tokenizer after the comparison on probe texts, or the reason why it may not be used.
fn probed<C: Candidate>(tokenizer: &Tokenizer) -> Result<(&Prepared, &Verified<C>), Reason> {
    let Some(prepared) = tokenizer.prepared(Prepared::default) else {
        return Err(Reason::new(ReasonCode::TokenizerIdMismatch).argument("tokenizer"));
    };
    let outcome = C::slot(prepared).probed.get_or_init(|| probe(tokenizer, prepared));
    let verified = outcome.as_ref().map_err(Reason::clone)?;
    match verified.revoked.get() {
        Some(reason) => Err(reason.clone()),
        None => Ok((prepared, verified)),
    }
}

fn probe<C: Candidate>(tokenizer: &Tokenizer, prepared: &Prepared) -> Result<Verified<C>, Reason> {
    // Definitions are large: skip parsing for candidates of another model kind.
    if let (Some(found), Some(required)) = (prepared.model.get(), C::MODEL)
        && *found != required
    {
        return Err(other_model(required, found));
    }
    if C::EQUALITY_TEST == EqualityTest::None {
        return Ok(Verified::new(C::build(tokenizer, &Value::Null)?, None));
    }
    let cached = cached_outcome::<C>(tokenizer);
    if let Some(Err(reason)) = cached {
        return Err(reason);
    }
    let definition = prepared.definition(tokenizer)?;
    prepared.model.get_or_init(|| model_kind(&definition));
    check_ids(&definition)?;
    let coder = C::build(tokenizer, &definition)?;
    let mut decoding = None;
    let probes = prepared.probes.get_or_init(|| probe_texts_of(tokenizer, &definition));
    for probe in probes {
        check_encoding(&coder, tokenizer, probe)?;
        if C::DECODES && decoding.is_none() {
            decoding = check_decoding(&coder, tokenizer, probe).err();
        }
    }
    if C::EQUALITY_TEST == EqualityTest::CodePoints && cached.is_none() {
        code_points::check_recent(&coder, tokenizer)
            .inspect_err(|reason| verification_cache::insert::<C>(tokenizer, &Err(reason.clone())))?;
    }
    Ok(Verified::new(coder, decoding))
}

fn cached_outcome<C: Candidate>(tokenizer: &Tokenizer) -> Option<Result<(), Reason>> {
    (C::EQUALITY_TEST == EqualityTest::CodePoints).then(|| verification_cache::get::<C>(tokenizer)).flatten()
}

fn check_code_points<C: Candidate>(
    coder: &C,
    tokenizer: &Tokenizer,
    prepared: &Prepared,
) -> Result<(), Reason> {
    if C::EQUALITY_TEST != EqualityTest::CodePoints {
        return Ok(());
    }
    cached_outcome::<C>(tokenizer).unwrap_or_else(|| {
        let found = code_points::check_all(coder, tokenizer, &prepared.code_point_hashes);
        verification_cache::insert::<C>(tokenizer, &found);
        found
    })
}

fn probe_texts_of(tokenizer: &Tokenizer, definition: &Value) -> Vec<Probe> {
    let texts = probe_texts::texts(tokenizer, definition);
    let probe = |(text, number): (String, usize)| {
        let special = number % 3 != 2;
        let mut expected = Encoded { offsets: Some(Vec::new()), ..Encoded::default() };
        // Texts on which the definition itself fails are skipped.
        encode_by_definition(tokenizer, &text, special, &mut expected).ok()?;
        let ids: Vec<u32> = expected.ids.iter().map(|id| *id as u32).collect();
        let decoded = [tokenizer.decode(&ids, false).ok()?, tokenizer.decode(&ids, true).ok()?];
        Some(Probe { text, special, expected, decoded })
    };
    texts.into_iter().zip(0..).filter_map(probe).collect()
}

fn check_encoding<C: Coder>(coder: &C, tokenizer: &Tokenizer, probe: &Probe) -> Result<(), Reason> {
    let mut found = Encoded { offsets: C::OFFSETS.then(Vec::new), ..Encoded::default() };
    let outcome = coder.encode(tokenizer, &[&probe.text], probe.special, &mut found);
    outcome.map_err(|error| error.reason)?;
    compare(&probe.text, &found, &probe.expected)?;
    // Encoding without offsets may use another code path.
    if C::OFFSETS {
        let mut plain = Encoded::default();
        coder.encode(tokenizer, &[&probe.text], probe.special, &mut plain).map_err(|error| error.reason)?;
        compare(&probe.text, &plain, &probe.expected)?;
    }
    Ok(())
}

fn check_decoding<C: Coder>(coder: &C, tokenizer: &Tokenizer, probe: &Probe) -> Result<(), Reason> {
    let ids: Vec<u32> = probe.expected.ids.iter().map(|id| *id as u32).collect();
    for (skip, expected) in [false, true].into_iter().zip(&probe.decoded) {
        let found = coder.decode(tokenizer, &ids, skip).map_err(|error| error.reason)?;
        if found != *expected {
            return Err(not_equal(&probe.text, &format!("{found:?}"), &format!("{expected:?}")));
        }
    }
    Ok(())
}

fn compare(text: &str, found: &Encoded, expected: &Encoded) -> Result<(), Reason> {
    let offsets = found.offsets.as_ref().zip(expected.offsets.as_ref());
    let offsets_differ = offsets.is_some_and(|(found, expected)| found != expected);
    if found.ids == expected.ids && !offsets_differ {
        return Ok(());
    }
    let position =
        found.ids.iter().zip(&expected.ids).take_while(|(found, expected)| found == expected).count();
    let shown = |encoded: &Encoded| {
        let ids: Vec<i32> = encoded.ids.iter().skip(position).take(4).copied().collect();
        if offsets_differ && found.ids == expected.ids {
            format!("offsets {:?}", encoded.offsets.as_deref().unwrap_or_default())
        } else {
            format!("{ids:?} at token {position}")
        }
    };
    Err(not_equal(text, &shown(found), &shown(expected)))
}

/// The shares of calls of a verified candidate that are compared with the definition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Share of the first 100 calls.
    pub initial: f64,
    /// Share of the next 1000 calls.
    pub warmup: f64,
    /// Share of all later calls.
    pub stable: f64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { initial: 0.1, warmup: 0.01, stable: 0.001 }
    }
}

static RATES: Mutex<Option<Rates>> = Mutex::new(None);

/// Sets the rates for this process.
pub fn set_rates(rates: Rates) {
    *RATES.lock().unwrap_or_else(PoisonError::into_inner) = Some(rates);
}

impl Rates {
    /// Whether the call with this number is compared: if the integer part of the cumulative share increases.
    pub fn samples(&self, call: u64) -> bool {
        let share = |calls: u64| {
            let (first, next) = (calls.min(100), calls.saturating_sub(100).min(1000));
            let rest = calls.saturating_sub(1100);
            first as f64 * self.initial + next as f64 * self.warmup + rest as f64 * self.stable
        };
        (share(call + 1) + 1e-9).floor() > (share(call) + 1e-9).floor()
    }
}

/// Compared texts are truncated to this many bytes, so that a comparison is fast.
const MAX_SAMPLE_BYTES: usize = 4096;

impl<C: Candidate> Verified<C> {
    fn new(coder: C, decoding: Option<Reason>) -> Verified<C> {
        Verified { coder, decoding, calls: AtomicU64::new(0), revoked: OnceLock::new() }
    }

    /// Why it may not be used for decoding, if it may not.
    pub fn decoding_objection(&self) -> Option<Reason> {
        if C::DECODES {
            self.decoding.clone()
        } else {
            Some(Reason::new(ReasonCode::TokenizerModelUnsupported))
        }
    }

    /// After a call, compares one of its texts with the definition at the configured rate. If they differ, the candidate is revoked.
    pub fn validate(&self, tokenizer: &Tokenizer, texts: &[&str], special: bool) -> Result<(), Reason> {
        if C::EQUALITY_TEST == EqualityTest::None {
            return Ok(());
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let rates = RATES.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default();
        if texts.is_empty() || !rates.samples(call) {
            return Ok(());
        }
        let text = texts[call as usize % texts.len()];
        let text = &text[..text.floor_char_boundary(MAX_SAMPLE_BYTES.min(text.len()))];
        let mut expected = Encoded { offsets: Some(Vec::new()), ..Encoded::default() };
        if encode_by_definition(tokenizer, text, special, &mut expected).is_err() {
            return Ok(());
        }
        let probe = Probe { text: text.to_owned(), special, expected, decoded: Default::default() };
        check_encoding(&self.coder, tokenizer, &probe).inspect_err(|reason| {
            // Another thread may have revoked it at the same time.
            let _ = self.revoked.set(reason.clone());
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn code_points_of(tokenizer: &Tokenizer) -> &OnceLock<Result<(), Reason>> {
        &HfTokenizers1::slot(tokenizer.prepared(Prepared::default).unwrap()).code_points
    }

    #[test]
    fn all_code_points_are_compared_before_a_run_but_not_for_a_list_of_candidates() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lz-ops/tests/data/byte_level_bpe.json");
        // Another digest than in other tests, which share outcomes.
        let definition = std::fs::read_to_string(file).unwrap() + " ";
        let bytes = Tokenizer::from_json(definition.as_bytes()).unwrap();
        assert!(has_native_kernel(&bytes, false));
        assert_eq!(objection::<HfTokenizers1>(&bytes, false), None);
        assert!(code_points_of(&bytes).get().is_none());
        // A difference is found before the run, and reported from then on.
        let difference = Reason::new(ReasonCode::TokenizerNotEqual).message("differs");
        code_points_of(&bytes).set(Err(difference.clone())).unwrap();
        assert_eq!(verified::<HfTokenizers1>(&bytes).map(drop).unwrap_err(), difference);
        assert_eq!(objection::<HfTokenizers1>(&bytes, false), Some(difference));

        // Without a native kernel it would be used, so it is compared at once.
        let definition = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "a": 1}}});
        let words = Tokenizer::from_json(definition.to_string().as_bytes()).unwrap();
        assert!(!has_native_kernel(&words, false));
        assert_eq!(objection::<HfTokenizers1>(&words, false), None);
        assert_eq!(code_points_of(&words).get(), Some(&Ok(())));
    }

    #[test]
    fn the_sampled_share_decreases_with_the_number_of_calls() {
        let rates = Rates::default();
        let sampled = |calls: std::ops::Range<u64>| calls.filter(|call| rates.samples(*call)).count();
        assert_eq!((sampled(0..100), sampled(100..1100), sampled(1100..11_100)), (10, 10, 10));
        let never = Rates { initial: 0.0, warmup: 0.0, stable: 0.0 };
        assert!((0..5000).all(|call| !never.samples(call)));
        let always = Rates { initial: 1.0, warmup: 1.0, stable: 1.0 };
        assert!((0..5000).all(|call| always.samples(call)));
    }
}
