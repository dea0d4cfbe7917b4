//! Whether a candidate is equal to a tokenizer's definition: compared by structure when it is built, tried on a corpus of
//! probes (and on every code point, if it has Unicode tables of its own) before it is first used, and tried again on real texts ever after, the less often the longer it holds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use lz_core::{Reason, ReasonCode};
use lz_ops::tokenizer::Tokenizer;
use serde_json::Value;

use crate::code_points;
use crate::coder::{Coder, Encoded, Trial, encode_by_definition};
use crate::definition::{check_ids, model_kind, other_model};
use crate::native::Native;
use crate::peers::{ByDefinition, GithubBpe, Next, Tiktoken};
use crate::probes;
use crate::sentencepiece::SentencePiece;
use crate::verdicts;
use crate::words::{CharBpe, Unigram, WordPiece, Words};

/// A candidate that was shown to be equal.
pub struct Proven<C> {
    /// The candidate.
    pub coder: C,
    /// Why its decoding may not be used.
    decoding: Option<Reason>,
    /// Calls so far.
    calls: AtomicU64,
    /// Set once it was seen to differ on a real text.
    revoked: OnceLock<Reason>,
}

/// A place for a candidate or for the reason why it is none.
pub struct Slot<C>(OnceLock<Result<Proven<C>, Reason>>);

impl<C> Default for Slot<C> {
    fn default() -> Slot<C> {
        Slot(OnceLock::new())
    }
}

/// Everything that was made of one tokenizer.
#[derive(Default)]
pub struct Prepared {
    native: Slot<Native>,
    word_piece: Slot<Words<WordPiece>>,
    unigram: Slot<Words<Unigram>>,
    char_bpe: Slot<Words<CharBpe>>,
    sentencepiece: Slot<SentencePiece>,
    definition: Slot<ByDefinition>,
    next: Slot<Next>,
    tiktoken: Slot<Tiktoken>,
    github_bpe: Slot<GithubBpe>,
    probes: OnceLock<Vec<Probe>>,
    answers: code_points::Answers,
    /// The parsed definition while several candidates are built.
    parsed: Mutex<Option<Arc<Value>>>,
    /// Set once the preferred kernel was made ready.
    ready: OnceLock<()>,
    /// The kind of its model, once somebody has read it.
    model: OnceLock<&'static str>,
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
pub fn sharing_definition<T>(tokenizer: &Tokenizer, work: impl FnOnce() -> T) -> T {
    let Some(prepared) = tokenizer.prepared(Prepared::default) else { return work() };
    let set = |parsed| *prepared.parsed.lock().unwrap_or_else(PoisonError::into_inner) = parsed;
    set(prepared.definition(tokenizer).ok());
    let done = work();
    set(None);
    prepared.ready.get_or_init(|| ());
    done
}

/// Whether the preferred kernel of a tokenizer was made ready.
pub fn is_prepared(tokenizer: &Tokenizer) -> bool {
    tokenizer.prepared(Prepared::default).is_none_or(|prepared| prepared.ready.get().is_some())
}

/// A candidate that has its place.
pub trait Candidate: Coder {
    /// Its place.
    fn slot(prepared: &Prepared) -> &Slot<Self>;
}

macro_rules! candidates {
    ($($kind:ty => $place:ident),* $(,)?) => {
        $(impl Candidate for $kind {
            fn slot(prepared: &Prepared) -> &Slot<Self> {
                &prepared.$place
            }
        })*
    };
}

candidates! {
    Native => native,
    Words<WordPiece> => word_piece,
    Words<Unigram> => unigram,
    Words<CharBpe> => char_bpe,
    SentencePiece => sentencepiece,
    ByDefinition => definition,
    Next => next,
    Tiktoken => tiktoken,
    GithubBpe => github_bpe,
}

/// A text and what the definition makes of it.
struct Probe {
    text: String,
    special: bool,
    wanted: Encoded,
    decoded: [String; 2],
}

/// The candidate for a tokenizer, built and proven now if it was not, or why there is none.
pub fn proven<C: Candidate>(tokenizer: &Tokenizer) -> Result<&Proven<C>, Reason> {
    let Some(prepared) = tokenizer.prepared(Prepared::default) else {
        return Err(Reason::new(ReasonCode::TokenizerIdMismatch).argument("tokenizer"));
    };
    let made = C::slot(prepared).0.get_or_init(|| prove(tokenizer, prepared));
    let proven = made.as_ref().map_err(Reason::clone)?;
    match proven.revoked.get() {
        Some(reason) => Err(reason.clone()),
        None => Ok(proven),
    }
}

fn prove<C: Candidate>(tokenizer: &Tokenizer, prepared: &Prepared) -> Result<Proven<C>, Reason> {
    // Definitions are large: those of another kind are not read again.
    if let (Some(found), Some(required)) = (prepared.model.get(), C::MODEL)
        && *found != required
    {
        return Err(other_model(required, found));
    }
    let verdict = (C::TRIAL == Trial::CodePoints).then(|| verdicts::of::<C>(tokenizer)).flatten();
    if let Some(Err(reason)) = verdict {
        return Err(reason);
    }
    if C::TRIAL == Trial::None {
        return Ok(Proven::new(C::build(tokenizer, &Value::Null)?, None));
    }
    let definition = prepared.definition(tokenizer)?;
    prepared.model.get_or_init(|| model_kind(&definition));
    check_ids(&definition)?;
    let coder = C::build(tokenizer, &definition)?;
    let mut decoding = None;
    let probes = prepared.probes.get_or_init(|| probes_of(tokenizer, &definition));
    for probe in probes {
        try_encoding(&coder, tokenizer, probe)?;
        if C::DECODES && decoding.is_none() {
            decoding = try_decoding(&coder, tokenizer, probe).err();
        }
    }
    if C::TRIAL == Trial::CodePoints && verdict.is_none() {
        let found = code_points::try_all(&coder, tokenizer, &prepared.answers);
        verdicts::remember::<C>(tokenizer, &found);
        found?;
    }
    Ok(Proven::new(coder, decoding))
}

fn probes_of(tokenizer: &Tokenizer, definition: &Value) -> Vec<Probe> {
    let texts = probes::texts(tokenizer, definition);
    let probe = |(text, number): (String, usize)| {
        let special = number % 3 != 2;
        let mut wanted = Encoded { offsets: Some(Vec::new()), ..Encoded::default() };
        // A text on which the definition itself fails proves nothing.
        encode_by_definition(tokenizer, &text, special, &mut wanted).ok()?;
        let ids: Vec<u32> = wanted.ids.iter().map(|id| *id as u32).collect();
        let decoded = [tokenizer.decode(&ids, false).ok()?, tokenizer.decode(&ids, true).ok()?];
        Some(Probe { text, special, wanted, decoded })
    };
    texts.into_iter().zip(0..).filter_map(probe).collect()
}

fn try_encoding<C: Coder>(coder: &C, tokenizer: &Tokenizer, probe: &Probe) -> Result<(), Reason> {
    let mut found = Encoded { offsets: C::OFFSETS.then(Vec::new), ..Encoded::default() };
    let outcome = coder.encode(tokenizer, &[&probe.text], probe.special, &mut found);
    outcome.map_err(|error| error.reason)?;
    compare(&probe.text, &found, &probe.wanted)?;
    // Without offsets another way may be taken.
    if C::OFFSETS {
        let mut plain = Encoded::default();
        coder.encode(tokenizer, &[&probe.text], probe.special, &mut plain).map_err(|error| error.reason)?;
        compare(&probe.text, &plain, &probe.wanted)?;
    }
    Ok(())
}

fn try_decoding<C: Coder>(coder: &C, tokenizer: &Tokenizer, probe: &Probe) -> Result<(), Reason> {
    let ids: Vec<u32> = probe.wanted.ids.iter().map(|id| *id as u32).collect();
    for (skip, wanted) in [false, true].into_iter().zip(&probe.decoded) {
        let found = coder.decode(tokenizer, &ids, skip).map_err(|error| error.reason)?;
        if found != *wanted {
            return Err(different(&probe.text, &format!("{found:?}"), &format!("{wanted:?}")));
        }
    }
    Ok(())
}

fn compare(text: &str, found: &Encoded, wanted: &Encoded) -> Result<(), Reason> {
    let offsets = found.offsets.as_ref().zip(wanted.offsets.as_ref());
    let offsets_differ = offsets.is_some_and(|(found, wanted)| found != wanted);
    if found.ids == wanted.ids && !offsets_differ {
        return Ok(());
    }
    let place = found.ids.iter().zip(&wanted.ids).take_while(|(found, wanted)| found == wanted).count();
    let shown = |encoded: &Encoded| {
        let ids: Vec<i32> = encoded.ids.iter().skip(place).take(4).copied().collect();
        if offsets_differ && found.ids == wanted.ids {
            format!("offsets {:?}", encoded.offsets.as_deref().unwrap_or_default())
        } else {
            format!("{ids:?} at token {place}")
        }
    };
    Err(different(text, &shown(found), &shown(wanted)))
}

pub fn different(text: &str, found: &str, wanted: &str) -> Reason {
    let start: String = text.chars().take(24).collect();
    Reason::new(ReasonCode::TokenizerNotEqual)
        .argument("tokenizer")
        .required(format!("{wanted} for {start:?}…"))
        .found(found)
}

/// How many calls of a proven candidate are tried against the definition: a share of the first hundred, of the next thousand,
/// and of all that follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Of the first 100.
    pub initial: f64,
    /// Of the next 1000.
    pub warmup: f64,
    /// Of the rest.
    pub stable: f64,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { initial: 0.1, warmup: 0.01, stable: 0.001 }
    }
}

static RATES: Mutex<Option<Rates>> = Mutex::new(None);

/// Sets the shares for this process.
pub fn set_rates(rates: Rates) {
    *RATES.lock().unwrap_or_else(PoisonError::into_inner) = Some(rates);
}

impl Rates {
    /// Whether the call of this number is tried: those at which the whole part of all shares so far moves.
    pub fn tries(&self, call: u64) -> bool {
        let share = |calls: u64| {
            let (first, next) = (calls.min(100), calls.saturating_sub(100).min(1000));
            let rest = calls.saturating_sub(1100);
            first as f64 * self.initial + next as f64 * self.warmup + rest as f64 * self.stable
        };
        (share(call + 1) + 1e-9).floor() > (share(call) + 1e-9).floor()
    }
}

/// Texts are tried up to so many bytes, so that a try never takes long.
const TRIED: usize = 4096;

impl<C: Candidate> Proven<C> {
    fn new(coder: C, decoding: Option<Reason>) -> Proven<C> {
        Proven { coder, decoding, calls: AtomicU64::new(0), revoked: OnceLock::new() }
    }

    /// Why it may not decode.
    pub fn objects_to_decoding(&self) -> Option<Reason> {
        if C::DECODES {
            self.decoding.clone()
        } else {
            Some(Reason::new(ReasonCode::TokenizerModelUnsupported))
        }
    }

    /// After a call: now and then tries one of its texts against the definition. If they differ, it is never used again.
    pub fn validate(&self, tokenizer: &Tokenizer, texts: &[&str], special: bool) -> Result<(), Reason> {
        if C::TRIAL == Trial::None {
            return Ok(());
        }
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let rates = RATES.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default();
        if texts.is_empty() || !rates.tries(call) {
            return Ok(());
        }
        let text = texts[call as usize % texts.len()];
        let text = &text[..text.floor_char_boundary(TRIED.min(text.len()))];
        let mut wanted = Encoded { offsets: Some(Vec::new()), ..Encoded::default() };
        if encode_by_definition(tokenizer, text, special, &mut wanted).is_err() {
            return Ok(());
        }
        let probe = Probe { text: text.to_owned(), special, wanted, decoded: Default::default() };
        try_encoding(&self.coder, tokenizer, &probe).inspect_err(|reason| {
            // Somebody else may have found out at the same time.
            let _ = self.revoked.set(reason.clone());
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_it_holds_the_less_is_tried() {
        let rates = Rates::default();
        let tried = |calls: std::ops::Range<u64>| calls.filter(|call| rates.tries(*call)).count();
        assert_eq!((tried(0..100), tried(100..1100), tried(1100..11_100)), (10, 10, 10));
        let never = Rates { initial: 0.0, warmup: 0.0, stable: 0.0 };
        assert!((0..5000).all(|call| !never.tries(call)));
        let always = Rates { initial: 1.0, warmup: 1.0, stable: 1.0 };
        assert!((0..5000).all(|call| always.tries(call)));
    }
}
