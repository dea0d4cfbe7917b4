//! Parses the YAML tree of a policy and collects all errors.

use std::collections::HashMap;
use std::sync::Arc;

use super::kernels;
use super::settings::{Kind, SETTINGS, SYNONYMS, Setting, SettingValue, WITHOUT_EFFECT, without_effect};
use super::{List, PolicyFile, RawAction, RawCondition, RawRule, SettingEntry};
use crate::diagnostics::{Code, Sink, listed, nearest};
use crate::raw::{Expression, Read, head};
use crate::source::{self, Node, Scalar, Span, Spanned, Value};

/// The maximum number of entries of a list or mapping of a policy; selection iterates over rules and locks.
const MAX_ENTRIES: usize = 10_000;

/// Keys of a file that are not settings.
const SECTIONS: [&str; 9] = [
    "version",
    "schema_version",
    "locks",
    "rules",
    "lock_rules",
    "deny_rules",
    "allow_rules",
    "kernels",
    "profiles",
];

/// Parses the policy in a sink's source. Structural errors are added to the sink. The valid parts are returned for further
/// checks, so that all errors of a file are reported at once. `None` if the file is not YAML.
pub fn read(sink: &mut Sink) -> Option<PolicyFile> {
    let source = Arc::clone(&sink.source);
    let (root, issues) = source::parse(&source);
    sink.report_yaml(&issues, "policies");
    root.map(|root| Reader { sink }.file(&root, true))
}

pub(super) struct Reader<'a> {
    pub(super) sink: &'a mut Sink,
}

pub(super) type Entries<'a> = Vec<(Spanned<String>, &'a Node)>;

impl Reader<'_> {
    fn file(&mut self, root: &Node, outermost: bool) -> PolicyFile {
        let mut file = PolicyFile::default();
        let what = if outermost { "a policy" } else { "a profile" };
        // A file that contains only comments is a valid empty policy.
        let entries = self.entries(root, what).unwrap_or_default();
        // Next to `schema_version`, `version` is that of the file itself.
        let has_schema_version = entries.iter().any(|(key, _)| key.value == "schema_version");
        for (key, value) in entries {
            match key.value.as_str() {
                "version" if outermost && has_schema_version => {
                    self.scalar(value, "a version");
                }
                "version" if outermost => self.version(value, &["1"]),
                "schema_version" if outermost => self.version(value, &["1", "2"]),
                "kernels" => {
                    for (name, group) in self.entries(value, "`kernels`").unwrap_or_default() {
                        kernels::read(self, &name, group, &mut file.rules);
                    }
                }
                "profiles" | "policies" if outermost => {
                    for (name, profile) in self.entries(value, "`profiles`").unwrap_or_default() {
                        let profile = self.file(profile, false);
                        file.profiles.push((name, profile));
                    }
                }
                "locks" => {
                    for (operation, kernel) in self.entries(value, "`locks`").unwrap_or_default() {
                        file.locks.extend(self.text(kernel).map(|kernel| (operation, kernel)));
                    }
                }
                "rules" | "dispatch_rules" => {
                    for rule in self.items(value) {
                        file.rules.extend(self.rule(rule));
                    }
                }
                "lock_rules" | "deny_rules" | "allow_rules" => {
                    for rule in self.items(value) {
                        file.rules.extend(self.kernel_rule(&key.value, rule));
                    }
                }
                word => match list_of(word) {
                    Some(list) => {
                        file.lists.extend(self.texts(value).into_iter().map(|text| (list, text)));
                    }
                    None => self.setting(&key, value, outermost, &mut file),
                },
            }
        }
        file
    }

    fn version(&mut self, node: &Node, supported: &[&str]) {
        match self.scalar(node, "a version").map(|scalar| scalar.text.as_str()) {
            None => {}
            Some(version) if supported.contains(&version) => {}
            Some(other) => {
                let message = format!("unsupported version `{other}` of the policy language");
                let note = match supported {
                    [only] => format!("the only supported version is {only}"),
                    several => format!("supported versions are {}", several.join(" and ")),
                };
                self.sink.error(Code::PolicyVersion, node.span, message).note(note);
            }
        }
    }

    fn setting(&mut self, key: &Spanned<String>, node: &Node, outermost: bool, file: &mut PolicyFile) {
        let section = format!("{}.", key.value);
        let keys = || SETTINGS.iter().map(|s| s.key).chain(SYNONYMS.iter().map(|(key, _)| *key));
        let ignored = WITHOUT_EFFECT.iter().map(|(key, _)| *key);
        if keys().chain(ignored).any(|known| known.starts_with(&section)) {
            let what = format!("`{}`", key.value);
            for (inner, value) in self.entries(node, &what).unwrap_or_default() {
                let whole = format!("{section}{}", inner.value);
                match (Setting::find(&whole), without_effect(&whole)) {
                    (Some(setting), _) => self.value(setting, &inner, value, &mut file.settings),
                    (None, Some(why)) => file.ignored.push((Spanned::new(whole, inner.span), why)),
                    (None, None) => {
                        let known = keys().filter_map(|known| known.strip_prefix(section.as_str()));
                        self.unknown(&inner, &what, known.collect());
                    }
                }
            }
            return;
        }
        match Setting::find(&key.value) {
            Some(setting) if !key.value.contains('.') => self.value(setting, key, node, &mut file.settings),
            _ => {
                let mut known: Vec<&str> =
                    keys().map(|known| known.split('.').next().unwrap_or(known)).collect();
                known.extend(
                    SECTIONS.iter().filter(|key| {
                        outermost || !matches!(**key, "version" | "schema_version" | "profiles")
                    }),
                );
                known.extend(List::ALL.iter().flat_map(|(_, kernels, sources)| [*kernels, *sources]));
                known.sort_unstable();
                known.dedup();
                self.unknown(key, if outermost { "a policy" } else { "a profile" }, known);
                if let (Some((section, name)), Some(_), Some(error)) =
                    (key.value.split_once('.'), Setting::find(&key.value), self.sink.diagnostics.last_mut())
                {
                    error.notes = vec![format!("sections are mappings; write `{section}: {{ {name}: … }}`")];
                }
            }
        }
    }

    fn value(
        &mut self,
        setting: &'static Setting,
        key: &Spanned<String>,
        node: &Node,
        given: &mut Vec<SettingEntry>,
    ) {
        if let Some(earlier) = given.iter().find(|earlier| earlier.setting.key == setting.key) {
            let message = format!("`{}` is set twice, under two names", setting.key);
            let span = earlier.span;
            self.sink.error(Code::ConflictingKeys, key.span, message).also(span, "first set here");
            return;
        }
        let value = match setting.kind {
            Kind::Ints { .. } => self.ints(setting, node),
            Kind::Texts => {
                Some(SettingValue::Texts(self.texts(node).into_iter().map(|text| text.value).collect()))
            }
            Kind::WordByName { .. } => self.words(setting, node),
            Kind::NumberTable => self.numbers(setting, node),
            Kind::RangeTable => self.ranges(setting, node),
            _ => self.single(setting, node),
        };
        given.extend(value.map(|value| SettingEntry { setting, value, span: node.span }));
    }

    fn single(&mut self, setting: &Setting, node: &Node) -> Option<SettingValue> {
        let Some(scalar) = single(node) else {
            self.wrong_value(setting, node);
            return None;
        };
        let takes_text =
            matches!(setting.kind, Kind::Text { .. } | Kind::Word { .. } | Kind::WordByName { .. });
        let quoted_number = !scalar.plain && !takes_text;
        let value = if quoted_number { None } else { setting.parse(&scalar.text) };
        if value.is_none() {
            self.wrong_value(setting, node);
        }
        value
    }

    fn wrong_value(&mut self, setting: &Setting, node: &Node) {
        let (code, near) = match (setting.kind, single(node)) {
            (_, None) => (Code::WrongForm, None),
            (Kind::Word { words, .. } | Kind::WordByName { words, .. }, Some(scalar)) => {
                (Code::UnknownWord, nearest(&scalar.text, words.iter().copied()))
            }
            (Kind::Bool { .. }, Some(scalar)) => {
                let meant = match scalar.text.to_ascii_lowercase().as_str() {
                    "yes" | "on" | "1" | "true" => Some("true"),
                    "no" | "off" | "0" | "false" => Some("false"),
                    other => nearest(other, ["true", "false"]),
                };
                (Code::WrongForm, meant)
            }
            (Kind::Int { .. } | Kind::Float { .. }, Some(scalar)) if scalar.text.parse::<f64>().is_ok() => {
                (Code::BadNumber, None)
            }
            _ => (Code::WrongForm, None),
        };
        let message = format!("`{}` needs {}", setting.key, setting.needs());
        self.sink.error(code, head(node), message).suggest(near);
    }

    fn ints(&mut self, setting: &Setting, node: &Node) -> Option<SettingValue> {
        let Value::Sequence(items) = &node.value else {
            self.wrong_value(setting, node);
            return None;
        };
        let mut values = Vec::with_capacity(items.len());
        for item in items {
            match single(item).and_then(|scalar| scalar.text.parse::<i64>().ok()).filter(|value| *value >= 0)
            {
                Some(value) => values.push(value),
                None => self.wrong_value(setting, item),
            }
        }
        Some(SettingValue::Ints(values))
    }

    /// Parses one word for all names, or a mapping of names to words.
    fn words(&mut self, setting: &Setting, node: &Node) -> Option<SettingValue> {
        if single(node).is_some() {
            return self.single(setting, node);
        }
        let mut parts = Vec::new();
        for (name, value) in self.entries(node, &format!("`{}`", setting.key))? {
            match single(value) {
                Some(scalar) if setting.parse(&scalar.text).is_some() => {
                    parts.push((name.value, scalar.text.clone()));
                }
                _ => self.wrong_value(setting, value),
            }
        }
        setting.words_by_name(parts.iter().map(|(name, word)| (name.as_str(), word.as_str())))
    }

    fn numbers(&mut self, setting: &Setting, node: &Node) -> Option<SettingValue> {
        let mut table = Vec::new();
        for (name, value) in self.entries(node, &format!("`{}`", setting.key))? {
            match single(value).and_then(|scalar| scalar.text.parse::<i64>().ok()).filter(|value| *value >= 0)
            {
                Some(value) => table.push((name.value, value)),
                None => self.wrong_value(setting, value),
            }
        }
        Some(SettingValue::Numbers(table))
    }

    fn ranges(&mut self, setting: &Setting, node: &Node) -> Option<SettingValue> {
        let mut table = Vec::new();
        for (range, value) in self.entries(node, &format!("`{}`", setting.key))? {
            let (first, last) = range.value.split_once("..").unwrap_or((&range.value, &range.value));
            match (first.trim().parse::<u32>(), last.trim().parse::<u32>()) {
                (Ok(first), Ok(last)) if first <= last => {
                    table.extend(self.text(value).map(|name| (first, last, name.value)));
                }
                _ => {
                    let message = format!("`{}` is not a range of compute capabilities", range.value);
                    self.sink.error(Code::BadNumber, range.span, message).note("write `80..88` or `90`");
                }
            }
        }
        Some(SettingValue::Ranges(table))
    }

    fn rule(&mut self, node: &Node) -> Option<RawRule> {
        let mut rule = RawRule { span: head(node), ..RawRule::default() };
        let mut boost: Option<Spanned<f64>> = None;
        let mut kernels: Option<Spanned<String>> = None;
        let mut conditional = false;
        let before = self.sink.diagnostics.len();
        for (key, value) in self.entries(node, "a rule")? {
            match key.value.as_str() {
                "name" => rule.name = self.text(value),
                "operation" => rule.operation = self.text(value),
                "condition" => {
                    conditional = true;
                    rule.conditions.extend(Expression::read(value, self.sink).map(RawCondition::Text));
                }
                "match" => {
                    conditional = true;
                    self.matches(value, &mut rule);
                }
                "action" => {
                    for (key, value) in self.entries(value, "`action`").unwrap_or_default() {
                        self.action(&key, value, &mut rule, &mut boost, &mut kernels);
                    }
                }
                _ => self.action(&key, value, &mut rule, &mut boost, &mut kernels),
            }
        }
        match (boost, kernels) {
            (Some(boost), kernels) => {
                let kernels = kernels.map_or_else(|| "*".to_owned(), |kernels| kernels.value);
                rule.actions.push(Spanned::new(RawAction::Boost(kernels, boost.value), boost.span));
            }
            (None, Some(kernels)) => {
                self.sink.error(
                    Code::ConflictingKeys,
                    kernels.span,
                    "`kernels` is allowed only with `priority_boost`",
                );
            }
            (None, None) => {}
        }
        // A rule with another error is not also reported as having no action.
        if self.sink.diagnostics.len() == before {
            if rule.actions.is_empty() {
                self.sink.error(Code::EmptyRule, rule.span, "the rule has no action").note(
                    "it needs one of `prefer`, `avoid`, `allow`, `deny`, `prefer_sources`, `avoid_sources`, `allow_sources`, \
                     `deny_sources`, `lock`, `kernel_override`, `priority_boost` and `filter_kernels`",
                );
            }
            if !conditional && rule.operation.is_none() {
                self.sink.error(Code::EmptyRule, rule.span, "the rule has no condition").note(
                    "add `match`, `condition` or `operation`; for unconditional actions, use the lists of the file",
                );
            }
        }
        Some(rule)
    }

    fn action(
        &mut self,
        key: &Spanned<String>,
        node: &Node,
        rule: &mut RawRule,
        boost: &mut Option<Spanned<f64>>,
        kernels: &mut Option<Spanned<String>>,
    ) {
        if let Some(list) = list_of(&key.value) {
            let texts = self.texts(node);
            rule.actions.extend(
                texts.into_iter().map(|text| Spanned::new(RawAction::List(list, text.value), text.span)),
            );
            return;
        }
        match key.value.as_str() {
            "lock" => rule
                .actions
                .extend(self.text(node).map(|text| Spanned::new(RawAction::Lock(text.value), text.span))),
            "kernel_override" => rule
                .actions
                .extend(self.text(node).map(|text| Spanned::new(RawAction::Override(text.value), text.span))),
            "priority_boost" => *boost = Spanned::<f64>::read(node, self.sink),
            "kernels" => *kernels = self.text(node),
            "filter_kernels" => {
                for item in self.items(node) {
                    let filter = Expression::read(item, self.sink);
                    rule.actions.extend(filter.map(|filter| {
                        let span = filter.span;
                        Spanned::new(RawAction::Filter(filter), span)
                    }));
                }
            }
            _ => {
                let mut known = vec![
                    "name",
                    "operation",
                    "match",
                    "condition",
                    "action",
                    "lock",
                    "kernel_override",
                    "priority_boost",
                    "kernels",
                    "filter_kernels",
                ];
                known.extend(List::ALL.iter().flat_map(|(_, kernels, sources)| [*kernels, *sources]));
                self.unknown(key, "a rule", known);
            }
        }
    }

    /// Parses `{ kernel, operation, conditions }`: a kernel that a profile locks, denies or allows.
    fn kernel_rule(&mut self, key: &str, node: &Node) -> Option<RawRule> {
        let mut rule = RawRule { span: head(node), ..RawRule::default() };
        let mut kernel = None;
        let mut named = false;
        for (inner, value) in self.entries(node, &format!("`{key}`"))? {
            match inner.value.as_str() {
                "kernel" => {
                    named = true;
                    kernel = self.text(value);
                }
                "operation" => rule.operation = self.text(value),
                "conditions" => {
                    for item in self.items(value) {
                        rule.conditions.extend(Expression::read(item, self.sink).map(RawCondition::Text));
                    }
                }
                _ => self.unknown(&inner, &format!("`{key}`"), vec!["kernel", "operation", "conditions"]),
            }
        }
        if !named {
            self.sink.error(Code::MissingKey, rule.span, format!("`kernel` is missing in `{key}`"));
        }
        let kernel = kernel?;
        let action = match key {
            "lock_rules" => RawAction::Lock(kernel.value),
            "deny_rules" => RawAction::List(List::Deny, kernel.value),
            _ => RawAction::List(List::Allow, kernel.value),
        };
        rule.actions.push(Spanned::new(action, kernel.span));
        Some(rule)
    }

    fn matches(&mut self, node: &Node, rule: &mut RawRule) {
        let Some(entries) = self.entries(node, "`match`") else { return };
        if entries.is_empty() {
            self.sink.error(Code::Empty, node.span, "`match` says nothing");
        }
        for (key, value) in entries {
            if matches!(key.value.as_str(), "operation" | "op") {
                match &rule.operation {
                    Some(earlier) => {
                        let span = earlier.span;
                        self.sink
                            .error(Code::ConflictingKeys, key.span, "the operation is given twice")
                            .also(span, "first given here");
                    }
                    None => rule.operation = self.text(value),
                }
                continue;
            }
            if let Some(text) = self.comparison(&key, value) {
                rule.conditions.push(RawCondition::Match { key, text, value: value.span });
            }
        }
    }

    /// Converts `sm: ">=90"` to `sm >= 90`.
    fn comparison(&mut self, key: &Spanned<String>, node: &Node) -> Option<String> {
        let name = &key.value;
        if let Value::Sequence(items) = &node.value {
            let words: Vec<&str> =
                items.iter().filter_map(|item| single(item).map(|scalar| scalar.text.trim())).collect();
            if words.len() == items.len() && !words.is_empty() && words.iter().all(|word| is_operand(word)) {
                return Some(format!("{name} in [{}]", words.join(", ")));
            }
            self.not_a_comparison(node.span);
            return None;
        }
        let text = self.scalar(node, "a comparison")?.text.trim().to_owned();
        let operators = [">=", "<=", "==", "!=", ">", "<"];
        let (operator, operand) = operators
            .iter()
            .find_map(|operator| Some((*operator, text.strip_prefix(operator)?.trim())))
            .unwrap_or(("==", text.as_str()));
        if !is_operand(operand) {
            self.not_a_comparison(node.span);
            return None;
        }
        Some(match (operator, operand) {
            ("==", "true") => name.clone(),
            ("==", "false") => format!("not {name}"),
            _ => format!("{name} {operator} {operand}"),
        })
    }

    fn not_a_comparison(&mut self, span: Span) {
        self.sink.error(Code::BadMatch, span, "this cannot be compared with a value").note(
            "expected a value, a comparison (`\">=90\"`) or a list (`[f16, bf16]`); use `condition` for other expressions; \
             only `operation` takes a pattern",
        );
    }

    pub(super) fn unknown(&mut self, key: &Spanned<String>, what: &str, known: Vec<&str>) {
        let full = self.sink.is_full();
        let near = self.sink.nearest(&key.value, known.iter().copied());
        let error =
            self.sink.error(Code::UnknownKey, key.span, format!("unknown key `{}` in {what}", key.value));
        error.suggest(near);
        if near.is_none() && !full {
            error.note(format!("expected one of {}", listed(known.iter().copied())));
        }
    }

    /// The entries of a mapping without duplicate keys; a null value is an empty mapping.
    pub(super) fn entries<'n>(&mut self, node: &'n Node, what: &str) -> Option<Entries<'n>> {
        let pairs = match &node.value {
            Value::Mapping(pairs) => pairs,
            Value::Scalar(scalar) if scalar.is_null() => return Some(Vec::new()),
            _ => {
                self.sink.error(Code::WrongForm, head(node), format!("expected a mapping ({what})"));
                return None;
            }
        };
        self.count(pairs.len(), node);
        let mut entries: Entries<'n> = Vec::new();
        let mut seen: HashMap<&str, Span> = HashMap::new();
        for (key, value) in pairs.iter().take(MAX_ENTRIES) {
            let Some(name) = single(key).filter(|scalar| !scalar.text.is_empty()) else {
                self.sink.error(Code::WrongForm, key.span, "a key must be a single word");
                continue;
            };
            match seen.get(name.text.as_str()) {
                Some(earlier) => {
                    self.sink
                        .error(Code::DuplicateKey, key.span, format!("duplicate key `{}`", name.text))
                        .also(*earlier, "first used here");
                }
                None => {
                    seen.insert(&name.text, key.span);
                    entries.push((Spanned::new(name.text.clone(), key.span), value));
                }
            }
        }
        Some(entries)
    }

    /// Rejects a list or mapping that is too long.
    fn count(&mut self, entries: usize, node: &Node) {
        if entries > MAX_ENTRIES {
            let message = format!("{entries} entries exceed the limit of {MAX_ENTRIES}");
            self.sink.error(Code::BadNumber, head(node), message);
        }
    }

    pub(super) fn items<'n>(&mut self, node: &'n Node) -> Vec<&'n Node> {
        match &node.value {
            Value::Sequence(items) => {
                self.count(items.len(), node);
                items.iter().take(MAX_ENTRIES).collect()
            }
            Value::Scalar(scalar) if scalar.is_null() => Vec::new(),
            _ => {
                self.sink.error(Code::WrongForm, head(node), "expected a list");
                Vec::new()
            }
        }
    }

    /// Parses one text or a list of texts.
    pub(super) fn texts(&mut self, node: &Node) -> Vec<Spanned<String>> {
        match &node.value {
            Value::Sequence(items) => {
                self.count(items.len(), node);
                items.iter().take(MAX_ENTRIES).filter_map(|item| self.text(item)).collect()
            }
            Value::Scalar(scalar) if scalar.is_null() => Vec::new(),
            _ => self.text(node).into_iter().collect(),
        }
    }

    pub(super) fn text(&mut self, node: &Node) -> Option<Spanned<String>> {
        Spanned::<String>::read(node, self.sink)
    }

    pub(super) fn scalar<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n Scalar> {
        let scalar = single(node).filter(|scalar| !scalar.is_null());
        if scalar.is_none() {
            self.sink.error(Code::WrongForm, head(node), format!("expected {what}"));
        }
        scalar
    }
}

fn single(node: &Node) -> Option<&Scalar> {
    match &node.value {
        Value::Scalar(scalar) => Some(scalar),
        _ => None,
    }
}

/// Whether a text is a number or a name, so that it can be inserted into a comparison.
fn is_operand(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+'))
}

fn list_of(key: &str) -> Option<List> {
    List::ALL.iter().find(|(_, kernels, sources)| *kernels == key || *sources == key).map(|(list, ..)| *list)
}
