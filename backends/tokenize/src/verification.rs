//! Verifies that a candidate is equal to a tokenizer's definition. Its structure is checked when it is built. Before its first use it is
//! compared with the definition on probe texts, and on every code point if it has its own Unicode tables. The latter takes seconds, so
//! a candidate that is only listed, because a native kernel would be used, is compared on recently assigned code points only.
//! Afterwards a decreasing share of real texts is compared.
//!
//! All of this runs in the [background](crate::background). Until it has ended, a candidate is not selected and the definition itself
//! encodes; [`settle`] waits for it.

use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use lz_core::fork::Mutex;
use lz_core::{Reason, ReasonCode};
use lz_ops::tokenizer::{Tokenizer, catch_panic};
use serde_json::Value;

use crate::background::{self, Work};
use crate::byte_bpe::ByteBpe;
use crate::code_points;
use crate::coder::{Coder, Encoded, EqualityTest, encode_by_definition, not_equal};
use crate::definition::{check_ids, model_kind, other_model};
use crate::external::{GithubBpe, HfTokenizers, HfTokenizers1, Tiktoken};
use crate::failure::{Failure, next_step};
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

/// A candidate once it is verified, or the reason why it may not be used. Set by the background thread after each part, never computed
/// inside of the locks: a process that forks in between must find them free.
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
    /// Set when the preferred kernel is verified.
    ready: OnceLock<()>,
    /// The template of the post-processor, for batches.
    template: OnceLock<Result<Template, String>>,
}

impl Prepared {
    /// The parsed definition.
    fn definition(&self, tokenizer: &Tokenizer) -> Result<Arc<Value>, Reason> {
        let shared = self.parsed.lock().clone();
        if let Some(shared) = shared {
            return Ok(shared);
        }
        let parsed = tokenizer.parsed();
        parsed
            .map(Arc::new)
            .map_err(|error| Reason::new(ReasonCode::TokenizerInvalid).message(error.to_string()))
    }
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

/// The candidate for a tokenizer, or the reason why it may not be used. Waits for its verification.
pub fn verified<C: Candidate>(tokenizer: &Tokenizer) -> Result<&Verified<C>, Reason> {
    let prepared = prepared(tokenizer)?;
    if full_outcome::<C>(tokenizer, prepared).is_none() {
        background::wait(tokenizer, Full::<C>::WORK, None);
    }
    full_outcome::<C>(tokenizer, prepared).unwrap_or_else(|| Err(verifying()))
}

/// Why a candidate may not be used for a tokenizer, if it may not. Does not wait: if that is not known yet, its verification is
/// requested.
///
/// While a native kernel is verified for the tokenizer, the candidate is not compared on all code points: it would run only after a
/// failure or if it is requested, and [`verified`] compares it before it runs.
pub fn objection<C: Candidate>(tokenizer: &Tokenizer, decodes: bool) -> Option<Reason> {
    let prepared = match prepared(tokenizer) {
        Ok(prepared) => prepared,
        Err(reason) => return Some(reason),
    };
    let Some(outcome) = listed_outcome::<C>(tokenizer, prepared, decodes) else {
        // Most tokenizers need no other candidates than the preferred one, which is verified first.
        let is_ready = prepared.ready.get().is_some();
        background::request(tokenizer, if is_ready { Listed::<C>::WORK } else { Preferred::WORK });
        return Some(verifying());
    };
    match outcome {
        Err(reason) => Some(reason),
        Ok(verified) if decodes => verified.decoding_objection(),
        Ok(_) => None,
    }
}

/// Waits until [`objection`] is known.
pub fn settle<C: Candidate>(tokenizer: &Tokenizer, decodes: bool) {
    if let Ok(prepared) = prepared(tokenizer)
        && listed_outcome::<C>(tokenizer, prepared, decodes).is_none()
    {
        background::wait(tokenizer, Listed::<C>::WORK, None);
    }
}

/// Waits until the preferred candidate is verified, at most until `deadline`. Returns the reason if neither a native candidate nor
/// `tokenizers` 1.0 is equal to the definition; `None` if the deadline has passed.
pub fn prepare(tokenizer: &Tokenizer, deadline: Option<Instant>) -> Option<Result<(), Reason>> {
    let prepared = match prepared(tokenizer) {
        Ok(prepared) => prepared,
        Err(reason) => return Some(Err(reason)),
    };
    if prepared.ready.get().is_none() && !background::wait(tokenizer, Preferred::WORK, deadline) {
        return None;
    }
    let is_native = NATIVE.iter().any(|native| (native.is_verified)(tokenizer, prepared, false));
    if is_native || full_outcome::<SentencePiece>(tokenizer, prepared).is_some_and(|outcome| outcome.is_ok())
    {
        return Some(Ok(()));
    }
    Some(verified::<HfTokenizers1>(tokenizer).map(drop))
}

/// Whether the preferred candidate of a tokenizer is verified, or the reason why none is.
pub fn is_prepared(tokenizer: &Tokenizer) -> bool {
    prepared(tokenizer).is_ok_and(|prepared| prepared.ready.get().is_some())
}

/// Why a candidate is not used yet.
fn verifying() -> Reason {
    Reason::new(ReasonCode::TokenizerVerifying).argument("tokenizer")
}

fn prepared(tokenizer: &Tokenizer) -> Result<&Prepared, Reason> {
    let mismatch = || Reason::new(ReasonCode::TokenizerIdMismatch).argument("tokenizer");
    tokenizer.prepared(Prepared::default).ok_or_else(mismatch)
}

type Outcome<'a, C> = Option<Result<&'a Verified<C>, Reason>>;

/// The outcome of the comparison on probe texts; `None` if it is not known yet.
fn probed_outcome<'a, C: Candidate>(tokenizer: &'a Tokenizer, prepared: &'a Prepared) -> Outcome<'a, C> {
    let slot = C::slot(prepared);
    // The structural check that needs no parsed definition.
    if slot.probed.get().is_none()
        && let Some(required) = C::MODEL
    {
        let found = model_kind(tokenizer.outline());
        if found != required {
            return Some(Err(other_model(required, found)));
        }
    }
    let outcome = match C::EQUALITY_TEST {
        EqualityTest::None => {
            slot.probed.get_or_init(|| Ok(Verified::new(C::build(tokenizer, &Value::Null)?, None)))
        }
        _ => slot.probed.get()?,
    };
    Some(match outcome {
        Err(reason) => Err(reason.clone()),
        Ok(verified) => verified.revoked.get().map_or(Ok(verified), |reason| Err(reason.clone())),
    })
}

/// The outcome of all comparisons; `None` if it is not known yet.
fn full_outcome<'a, C: Candidate>(tokenizer: &'a Tokenizer, prepared: &'a Prepared) -> Outcome<'a, C> {
    let probed = probed_outcome::<C>(tokenizer, prepared)?;
    if C::EQUALITY_TEST != EqualityTest::CodePoints || probed.is_err() {
        return Some(probed);
    }
    let compared = C::slot(prepared).code_points.get()?;
    Some(compared.clone().and(probed))
}

/// The outcome for a list of candidates, see [`objection`]; `None` if it is not known yet.
fn listed_outcome<'a, C: Candidate>(
    tokenizer: &'a Tokenizer,
    prepared: &'a Prepared,
    decodes: bool,
) -> Outcome<'a, C> {
    full_outcome::<C>(tokenizer, prepared).or_else(|| {
        let probed = probed_outcome::<C>(tokenizer, prepared)?;
        has_native_kernel(tokenizer, prepared, decodes).then_some(probed)
    })
}

/// Whether a native kernel is verified for a tokenizer.
fn has_native_kernel(tokenizer: &Tokenizer, prepared: &Prepared, decodes: bool) -> bool {
    NATIVE.iter().any(|native| (native.is_verified)(tokenizer, prepared, decodes))
}

/// A native candidate.
struct Native {
    verify: fn(&Tokenizer, &Prepared) -> Result<(), Stopped>,
    is_verified: fn(&Tokenizer, &Prepared, bool) -> bool,
}

const fn native<C: Candidate>() -> Native {
    Native {
        verify: verify::<C>,
        is_verified: |tokenizer, prepared, decodes| {
            probed_outcome::<C>(tokenizer, prepared).is_some_and(|outcome| {
                outcome.is_ok_and(|verified| !decodes || verified.decoding_objection().is_none())
            })
        },
    }
}

/// The native candidates. Each tokenizer has one model kind, so at most one of them accepts it.
static NATIVE: [Native; 4] = [
    native::<ByteBpe>(),
    native::<WordTokenizer<WordPiece>>(),
    native::<WordTokenizer<Unigram>>(),
    native::<WordTokenizer<CharBpe>>(),
];

/// The verification ended because the tokenizer is not used any more.
struct Stopped;

/// Verifies the native candidates and, if none is equal, `tokenizers` 1.0.
struct Preferred;

impl Preferred {
    const WORK: Work = Work { id: TypeId::of::<Preferred>(), run: Preferred::run };

    fn run(tokenizer: &Tokenizer) -> bool {
        with_parsed_definition(tokenizer, |prepared| {
            NATIVE.iter().try_for_each(|native| (native.verify)(tokenizer, prepared))?;
            if !has_native_kernel(tokenizer, prepared, false) && !tokenizer.is_sentencepiece() {
                verify::<HfTokenizers1>(tokenizer, prepared)?;
                compare_code_points::<HfTokenizers1>(tokenizer, prepared)?;
            }
            prepared.ready.get_or_init(|| ());
            Ok(())
        })
    }
}

/// Verifies a candidate as far as [`objection`] needs it.
struct Listed<C>(PhantomData<C>);

impl<C: Candidate> Listed<C> {
    const WORK: Work = Work { id: TypeId::of::<Listed<C>>(), run: Listed::<C>::run };

    fn run(tokenizer: &Tokenizer) -> bool {
        with_parsed_definition(tokenizer, |prepared| {
            verify::<C>(tokenizer, prepared)?;
            if C::EQUALITY_TEST == EqualityTest::CodePoints {
                NATIVE.iter().try_for_each(|native| (native.verify)(tokenizer, prepared))?;
                let runs = |decodes| !has_native_kernel(tokenizer, prepared, decodes);
                if runs(false) || runs(true) {
                    compare_code_points::<C>(tokenizer, prepared)?;
                }
            }
            Ok(())
        })
    }
}

/// Verifies a candidate that will run.
struct Full<C>(PhantomData<C>);

impl<C: Candidate> Full<C> {
    const WORK: Work = Work { id: TypeId::of::<Full<C>>(), run: Full::<C>::run };

    fn run(tokenizer: &Tokenizer) -> bool {
        let Ok(prepared) = prepared(tokenizer) else { return true };
        let compared = verify::<C>(tokenizer, prepared);
        compared.and_then(|()| compare_code_points::<C>(tokenizer, prepared)).is_ok()
    }
}

/// Parses the definition once for all candidates that `work` builds.
fn with_parsed_definition(
    tokenizer: &Tokenizer,
    work: impl FnOnce(&Prepared) -> Result<(), Stopped>,
) -> bool {
    let Ok(prepared) = prepared(tokenizer) else { return true };
    let set = |parsed| *prepared.parsed.lock() = parsed;
    if tokenizer.is_sentencepiece() {
        return work(prepared).is_ok();
    }
    set(prepared.definition(tokenizer).ok());
    let done = work(prepared);
    set(None);
    done.is_ok()
}

/// Builds a candidate and compares it on probe texts, unless that is done.
fn verify<C: Candidate>(tokenizer: &Tokenizer, prepared: &Prepared) -> Result<(), Stopped> {
    if probed_outcome::<C>(tokenizer, prepared).is_some() {
        return Ok(());
    }
    let outcome = without_panic(|| probe::<C>(tokenizer, prepared));
    // Only the background thread sets it, or a thread that waits for the same job instead.
    let _ = C::slot(prepared).probed.set(known(outcome)?);
    Ok(())
}

/// Compares a verified candidate on all code points, unless that is done or not required.
fn compare_code_points<C: Candidate>(tokenizer: &Tokenizer, prepared: &Prepared) -> Result<(), Stopped> {
    if full_outcome::<C>(tokenizer, prepared).is_some() {
        return Ok(());
    }
    let Some(Ok(verified)) = probed_outcome::<C>(tokenizer, prepared) else { return Ok(()) };
    let outcome = without_panic(|| check_code_points(&verified.coder, tokenizer, prepared));
    let _ = C::slot(prepared).code_points.set(known(outcome)?);
    Ok(())
}

/// An outcome that is kept.
fn known<T>(outcome: Result<T, Failure>) -> Result<Result<T, Reason>, Stopped> {
    match outcome {
        Ok(verified) => Ok(Ok(verified)),
        Err(Failure::Rejected(reason)) => Ok(Err(reason)),
        Err(Failure::Stopped) => Err(Stopped),
    }
}

/// A panic of a candidate rejects it.
fn without_panic<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_panic(work).unwrap_or_else(|message| {
        let message = format!("the verification panicked: {message}");
        Err(Reason::new(ReasonCode::TokenizerInvalid).argument("tokenizer").message(message).into())
    })
}

fn probe<C: Candidate>(tokenizer: &Tokenizer, prepared: &Prepared) -> Result<Verified<C>, Failure> {
    let cached = cached_outcome::<C>(tokenizer);
    if let Some(Err(reason)) = cached {
        return Err(reason.into());
    }
    let definition = prepared.definition(tokenizer)?;
    check_ids(&definition)?;
    next_step(tokenizer)?;
    let coder = C::build(tokenizer, &definition)?;
    next_step(tokenizer)?;
    let mut decoding = None;
    let probes = prepared.probes.get_or_init(|| probe_texts_of(tokenizer, &definition));
    for probe in probes {
        next_step(tokenizer)?;
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
) -> Result<(), Failure> {
    if let Some(cached) = cached_outcome::<C>(tokenizer) {
        return Ok(cached?);
    }
    let found = code_points::check_all(coder, tokenizer, &prepared.code_point_hashes);
    match &found {
        Ok(()) => verification_cache::insert::<C>(tokenizer, &Ok(())),
        Err(Failure::Rejected(reason)) => verification_cache::insert::<C>(tokenizer, &Err(reason.clone())),
        Err(Failure::Stopped) => {}
    }
    found
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
    *RATES.lock() = Some(rates);
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
        let rates = RATES.lock().unwrap_or_default();
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
        &HfTokenizers1::slot(prepared(tokenizer).unwrap()).code_points
    }

    fn is_native(tokenizer: &Tokenizer) -> bool {
        has_native_kernel(tokenizer, prepared(tokenizer).unwrap(), false)
    }

    /// A tokenizer with native kernels and another digest than in other tests, which share outcomes.
    fn byte_level_bpe(name: &str) -> Tokenizer {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lz-ops/tests/data/byte_level_bpe.json");
        let mut definition: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let token = json!({"id": 268, "content": format!("<{name}>"), "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true});
        definition["added_tokens"].as_array_mut().unwrap().push(token);
        Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
    }

    fn word_level(name: &str) -> Tokenizer {
        let definition = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"[UNK]": 0, name: 1}}});
        Tokenizer::from_json(definition.to_string().as_bytes()).unwrap()
    }

    fn code_of<C: Candidate>(tokenizer: &Tokenizer) -> Option<ReasonCode> {
        objection::<C>(tokenizer, false).map(|reason| reason.code)
    }

    #[test]
    fn all_code_points_are_compared_before_a_run_but_not_for_a_list_of_candidates() {
        let bytes = byte_level_bpe("listed");
        prepare(&bytes, None).unwrap().unwrap();
        assert!(is_native(&bytes));
        settle::<HfTokenizers1>(&bytes, false);
        assert_eq!(objection::<HfTokenizers1>(&bytes, false), None);
        assert!(code_points_of(&bytes).get().is_none());
        // A difference is found before the run, and reported from then on.
        let difference = Reason::new(ReasonCode::TokenizerNotEqual).message("differs");
        code_points_of(&bytes).set(Err(difference.clone())).unwrap();
        assert_eq!(verified::<HfTokenizers1>(&bytes).map(drop).unwrap_err(), difference);
        assert_eq!(objection::<HfTokenizers1>(&bytes, false), Some(difference));

        // Without a native kernel it would be used, so it is compared at once.
        let words = word_level("listed");
        settle::<HfTokenizers1>(&words, false);
        assert!(!is_native(&words));
        assert_eq!(objection::<HfTokenizers1>(&words, false), None);
        assert_eq!(code_points_of(&words).get(), Some(&Ok(())));
    }

    #[test]
    fn an_objection_does_not_wait_and_the_preferred_candidate_is_verified_first() {
        let tokenizer = byte_level_bpe("background");
        let pause = background::pause();
        // The definition needs no verification, and the model kind is known from loading.
        assert_eq!(code_of::<HfTokenizers>(&tokenizer), None);
        assert_eq!(
            code_of::<WordTokenizer<WordPiece>>(&tokenizer),
            Some(ReasonCode::TokenizerModelUnsupported)
        );
        assert!(!background::is_pending(&tokenizer));
        assert_eq!(code_of::<HfTokenizers1>(&tokenizer), Some(ReasonCode::TokenizerVerifying));
        assert_eq!(code_of::<ByteBpe>(&tokenizer), Some(ReasonCode::TokenizerVerifying));
        assert!(background::is_pending(&tokenizer) && !is_prepared(&tokenizer));
        drop(pause);
        assert!(background::wait_for_all(&tokenizer, None));
        assert!(is_prepared(&tokenizer) && is_native(&tokenizer));
        assert_eq!(code_of::<ByteBpe>(&tokenizer), None);
        // Nothing else was built.
        assert!(HfTokenizers1::slot(prepared(&tokenizer).unwrap()).probed.get().is_none());
        let pause = background::pause();
        assert_eq!(code_of::<HfTokenizers1>(&tokenizer), Some(ReasonCode::TokenizerVerifying));
        drop(pause);
        assert!(background::wait_for_all(&tokenizer, None));
        assert_eq!(code_of::<HfTokenizers1>(&tokenizer), None);
    }

    #[test]
    fn a_failed_verification_leaves_the_definition() {
        let tokenizer = word_level("failed");
        let difference = Reason::new(ReasonCode::TokenizerNotEqual).message("differs");
        verification_cache::insert::<HfTokenizers1>(&tokenizer, &Err(difference.clone()));
        let engine = lz_engine::Engine::with_kernels(crate::kernels()).unwrap();
        let encode = || {
            let call = lz_ops::TokenizeEncode::new(&["failed"], &tokenizer);
            lz_ops::tokenize_encode(&engine, call).unwrap().tokens.bytes().to_vec()
        };
        let before = encode();
        assert_eq!(prepare(&tokenizer, None), Some(Err(difference.clone())));
        assert_eq!(objection::<HfTokenizers1>(&tokenizer, false), Some(difference));
        assert_eq!(code_of::<HfTokenizers>(&tokenizer), None);
        assert_eq!(encode(), before);
    }

    #[test]
    fn a_panic_rejects_the_candidate() {
        let failed = without_panic::<()>(|| panic!("at a token")).unwrap_err();
        let Failure::Rejected(reason) = failed else { panic!("stopped") };
        assert_eq!(reason.code, ReasonCode::TokenizerInvalid);
        assert!(reason.to_string().contains("at a token"), "{reason}");
    }

    #[test]
    fn a_dropped_tokenizer_is_not_verified() {
        let tokenizer = byte_level_bpe("dropped");
        let weak = tokenizer.downgraded();
        let pause = background::pause();
        assert_eq!(code_of::<ByteBpe>(&tokenizer), Some(ReasonCode::TokenizerVerifying));
        drop(tokenizer);
        assert!(!weak.is_alive());
        drop(pause);
        let other = word_level("after the dropped one");
        prepare(&other, None).unwrap().unwrap();
        // A tokenizer with the same definition is a new one.
        let again = byte_level_bpe("dropped");
        assert!(!is_prepared(&again));
        prepare(&again, None).unwrap().unwrap();
        assert!(is_prepared(&again));
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let tokenizer = byte_level_bpe("deadline");
        let pause = background::pause();
        assert_eq!(prepare(&tokenizer, Some(Instant::now())), None);
        assert!(!background::wait_for_all(&tokenizer, Some(Instant::now())));
        drop(pause);
        assert!(prepare(&tokenizer, None).unwrap().is_ok());
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
