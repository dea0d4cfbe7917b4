//! `layerzero.lock`: the decisions of a run as text for review and comparison.
//!
//! One block per decision, sorted, so that a changed decision changes few lines. The digest at the end covers everything above it:
//! machines with the same digest make the same decisions.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use lz_schema::diagnostics::{Code, Report, Sink, listed};
use lz_schema::source::{self, Node, Source, Span};
use sha2::{Digest, Sha256};

use super::capabilities::hex;
use lz_core::contract::{entries, first_line, get, items, text};
use lz_core::error::Error;
use lz_core::reason::{Reason, ReasonCode};

const HEADER: &str = "# The decisions of a run. Written by `lz freeze`; review changes, do not edit.\n";
const KEYS: [&str; 7] = ["version", "layerzero", "hardware", "policy", "capabilities", "decisions", "digest"];
const DECISION_KEYS: [&str; 6] = ["operation", "context", "schema", "kernel", "kernel_version", "fallbacks"];

/// The decisions of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lockfile {
    /// The LayerZero release.
    pub layerzero: String,
    /// Hardware signature.
    pub hardware: String,
    /// Digest of the policy.
    pub policy: String,
    /// Hash of the capabilities.
    pub capabilities: String,
    /// Decisions by operation and context.
    decisions: BTreeMap<(String, String), LockedDecision>,
}

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedDecision {
    /// The operation.
    pub operation: String,
    /// The cell, for display: `T=bf16 rows<=16 hidden=4096`.
    pub context: String,
    /// Digest of the operation's schema.
    pub schema: String,
    /// The kernel.
    pub kernel: String,
    /// Its version.
    pub kernel_version: String,
    /// Fallbacks, in order.
    pub fallbacks: Vec<String>,
}

/// A difference between two lockfiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// `hardware`, or `norm.rms [T=bf16 rows<=16]: kernel`.
    pub what: String,
    /// The expected value; `None` if it is missing.
    pub expected: Option<String>,
    /// The value found.
    pub found: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
        write!(f, "{}: expected {}, found {}", self.what, side(&self.expected), side(&self.found))
    }
}

impl Mismatch {
    /// As a reason.
    pub fn reason(&self) -> Reason {
        Reason::new(ReasonCode::LockfileMismatch)
            .argument(&self.what)
            .required(self.expected.as_deref().unwrap_or("nothing"))
            .found(self.found.as_deref().unwrap_or("nothing"))
    }
}

/// An invalid lockfile.
#[derive(Debug, Clone)]
pub struct LockfileError {
    /// The file.
    pub path: String,
    /// All problems, with spans.
    pub report: Report,
}

impl fmt::Display for LockfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a valid lockfile\n{}", self.path, self.report)
    }
}

impl std::error::Error for LockfileError {}

impl From<LockfileError> for Error {
    fn from(error: LockfileError) -> Error {
        let reasons = error.report.diagnostics.iter();
        let reasons =
            reasons.map(|mistake| Reason::new(ReasonCode::LockfileInvalid).message(mistake.message.clone()));
        Error::Configuration {
            subject: error.path.clone(),
            message: error.to_string(),
            reasons: reasons.collect(),
        }
    }
}

impl Lockfile {
    /// An empty lockfile of this release.
    pub fn new(hardware: &str, policy: &str, capabilities: &str) -> Lockfile {
        Lockfile {
            layerzero: env!("CARGO_PKG_VERSION").to_owned(),
            hardware: hardware.to_owned(),
            policy: policy.to_owned(),
            capabilities: capabilities.to_owned(),
            decisions: BTreeMap::new(),
        }
    }

    /// Adds a decision, replacing one for the same operation and context.
    pub fn add(&mut self, decision: LockedDecision) {
        self.decisions.insert((decision.operation.clone(), decision.context.clone()), decision);
    }

    /// The decisions, sorted by operation and context.
    pub fn decisions(&self) -> impl Iterator<Item = &LockedDecision> {
        self.decisions.values()
    }

    /// The decision for an operation and context.
    pub fn get(&self, operation: &str, context: &str) -> Option<&LockedDecision> {
        self.decisions.get(&(operation.to_owned(), context.to_owned()))
    }

    /// SHA-256 of everything but the digest itself.
    pub fn digest(&self) -> String {
        hex(&Sha256::digest(self.body().as_bytes()))
    }

    /// The file's text.
    pub fn text(&self) -> String {
        format!("{HEADER}{}digest: {}\n", self.body(), quoted(&self.digest()))
    }

    fn body(&self) -> String {
        let mut body = String::from("version: 1\n");
        let facts = [
            ("layerzero", &self.layerzero),
            ("hardware", &self.hardware),
            ("policy", &self.policy),
            ("capabilities", &self.capabilities),
        ];
        for (key, value) in facts {
            body.push_str(&format!("{key}: {}\n", quoted(value)));
        }
        if self.decisions.is_empty() {
            body.push_str("decisions: []\n");
            return body;
        }
        body.push_str("decisions:\n");
        for decision in self.decisions.values() {
            let fallbacks: Vec<String> = decision.fallbacks.iter().map(|kernel| quoted(kernel)).collect();
            body.push_str(&format!("  - operation: {}\n", quoted(&decision.operation)));
            body.push_str(&format!("    context: {}\n", quoted(&decision.context)));
            body.push_str(&format!("    schema: {}\n", quoted(&decision.schema)));
            body.push_str(&format!("    kernel: {}\n", quoted(&decision.kernel)));
            body.push_str(&format!("    kernel_version: {}\n", quoted(&decision.kernel_version)));
            body.push_str(&format!("    fallbacks: [{}]\n", fallbacks.join(", ")));
        }
        body
    }

    /// Reads a lockfile; a wrong digest is an error.
    pub fn read(path: &str, content: &str) -> Result<Lockfile, LockfileError> {
        let source = Arc::new(Source::new(path, content));
        let mut sink = Sink::new(Arc::clone(&source));
        let (root, issues) = source::parse(&source);
        sink.report_yaml(&issues, "lockfiles");
        let lockfile = root.map(|root| Reader { sink: &mut sink }.lockfile(&root));
        match lockfile {
            Some(lockfile) if sink.diagnostics.is_empty() => Ok(lockfile),
            _ => Err(LockfileError {
                path: path.to_owned(),
                report: Report::of_one(sink.diagnostics, &source.path),
            }),
        }
    }

    /// All differences between this, which is expected, and `found`.
    pub fn compare(&self, found: &Lockfile) -> Vec<Mismatch> {
        let mut all = Vec::new();
        let mut differ = |what: String, expected: Option<&str>, found: Option<&str>| {
            if expected != found {
                let (expected, found) = (expected.map(str::to_owned), found.map(str::to_owned));
                all.push(Mismatch { what, expected, found });
            }
        };
        let facts = [
            ("layerzero", &self.layerzero, &found.layerzero),
            ("hardware", &self.hardware, &found.hardware),
            ("policy", &self.policy, &found.policy),
            ("capabilities", &self.capabilities, &found.capabilities),
        ];
        for (key, ours, theirs) in facts {
            differ(key.to_owned(), Some(ours), Some(theirs));
        }
        let mut keys: Vec<&(String, String)> = self.decisions.keys().chain(found.decisions.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let label = format!("{} [{}]", key.0, key.1);
            match (self.decisions.get(key), found.decisions.get(key)) {
                (Some(ours), Some(theirs)) => {
                    let fields = [
                        ("schema", &ours.schema, &theirs.schema),
                        ("kernel", &ours.kernel, &theirs.kernel),
                        ("kernel_version", &ours.kernel_version, &theirs.kernel_version),
                        ("fallbacks", &ours.fallbacks.join(", "), &theirs.fallbacks.join(", ")),
                    ];
                    for (field, ours, theirs) in fields {
                        differ(format!("{label}: {field}"), Some(ours), Some(theirs));
                    }
                }
                (ours, theirs) => differ(
                    label,
                    ours.map(|decision| decision.kernel.as_str()),
                    theirs.map(|decision| decision.kernel.as_str()),
                ),
            }
        }
        all
    }

    /// The differences as text, one per line with `-` for expected and `+` for found; empty without any.
    pub fn diff(&self, found: &Lockfile) -> String {
        let mut text = String::new();
        for mismatch in self.compare(found) {
            text.push_str(&format!("{}\n", mismatch.what));
            let sides = [("-", &mismatch.expected), ("+", &mismatch.found)];
            for (sign, side) in sides {
                if let Some(side) = side {
                    text.push_str(&format!("  {sign} {side}\n"));
                }
            }
        }
        text
    }
}

/// Quotes as JSON, which is valid YAML too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

struct Reader<'a> {
    sink: &'a mut Sink,
}

impl Reader<'_> {
    fn lockfile(&mut self, root: &Node) -> Lockfile {
        self.closed(root, "a lockfile", &KEYS);
        if let Some(version) = get(root, "version").filter(|version| text(version) != Some("1")) {
            let found = text(version).unwrap_or_default();
            let message = format!("unknown lockfile version `{found}`");
            self.sink
                .error(Code::ContractVersion, version.span, message)
                .note("this release supports version 1");
        }
        let mut lockfile = Lockfile {
            layerzero: self.text(root, "layerzero"),
            hardware: self.text(root, "hardware"),
            policy: self.text(root, "policy"),
            capabilities: self.text(root, "capabilities"),
            decisions: BTreeMap::new(),
        };
        let mut spans: BTreeMap<(String, String), Span> = BTreeMap::new();
        for node in get(root, "decisions").map_or(&[][..], items) {
            self.closed(node, "a decision", &DECISION_KEYS);
            let fallbacks = get(node, "fallbacks").map_or(&[][..], items);
            let decision = LockedDecision {
                operation: self.text(node, "operation"),
                context: self.text(node, "context"),
                schema: self.text(node, "schema"),
                kernel: self.text(node, "kernel"),
                kernel_version: self.text(node, "kernel_version"),
                fallbacks: fallbacks.iter().filter_map(|item| text(item).map(str::to_owned)).collect(),
            };
            let label = first_line(&self.sink.source, node.span);
            let key = (decision.operation.clone(), decision.context.clone());
            if let Some(earlier) = spans.insert(key, label) {
                let message = format!("`{}` has two decisions for one context", decision.operation);
                self.sink.error(Code::RepeatedItem, label, message).also(earlier, "first decided here");
            }
            lockfile.add(decision);
        }
        let stated = self.text(root, "digest");
        if self.sink.diagnostics.is_empty() && stated != lockfile.digest() {
            let span = get(root, "digest").map_or(root.span, |node| node.span);
            self.sink
                .error(Code::DigestMismatch, span, "the digest does not match the decisions above")
                .note(format!("expected {}; the file was edited or truncated", lockfile.digest()));
        }
        lockfile
    }

    fn closed(&mut self, node: &Node, what: &str, keys: &[&str]) {
        let mut seen: HashSet<&str> = HashSet::new();
        for (key, span, _) in entries(node) {
            if seen.contains(&key) {
                self.sink.error(Code::DuplicateKey, span, format!("`{key}` is written twice"));
            } else if !keys.contains(&key) {
                let near = self.sink.nearest(key, keys.iter().copied());
                self.sink
                    .error(Code::UnknownKey, span, format!("unknown key `{key}` in {what}"))
                    .suggest(near)
                    .note(format!("the keys are {}", listed(keys.iter().copied())));
            }
            seen.insert(key);
        }
        for key in keys.iter().filter(|key| !seen.contains(**key)) {
            let span = first_line(&self.sink.source, node.span);
            self.sink.error(Code::MissingKey, span, format!("`{key}` is missing in {what}"));
        }
    }

    fn text(&mut self, node: &Node, key: &str) -> String {
        let Some(value) = get(node, key) else { return String::new() };
        match text(value) {
            Some(found) => found.to_owned(),
            None => {
                self.sink.error(Code::WrongForm, value.span, format!("`{key}` needs a text"));
                String::new()
            }
        }
    }
}
