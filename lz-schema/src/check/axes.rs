//! Validates `axes`: sizes, buckets and the sizes that property tests draw.

use super::Checker;
use crate::diagnostics::Code;
use crate::model::{Axis, Fuzz, Role, Select};
use crate::raw::language::{RawAxis, RawOperation};
use crate::raw::{RawFuzz, RawSelect};
use crate::source::{Span, Spanned};

impl Checker<'_> {
    /// All axes in order. An axis with errors is included without contents, so that indices remain valid.
    pub(super) fn axes(&mut self, raw: &RawOperation) -> Vec<Axis> {
        let entries = raw.axes.iter().flat_map(|named| &named.entries);
        entries
            .map(|entry| match &entry.value {
                Some(raw) => self.axis(&entry.name, raw),
                None => self.axis_of(&entry.name, &RawAxis::default()),
            })
            .collect()
    }

    fn axis(&mut self, name: &Spanned<String>, raw: &RawAxis) -> Axis {
        let fixed = raw.value.is_some();
        let pack = raw.pack.as_ref().is_some_and(|pack| pack.value);
        let dynamic = raw.dynamic.as_ref().is_some_and(|dynamic| dynamic.value);
        let present = [
            ("select", raw.select.is_some()),
            ("fuzz", raw.fuzz.is_some()),
            ("models", raw.models.is_some()),
            ("pack", pack),
            ("dynamic", dynamic),
        ];
        for (key, _) in present.iter().filter(|(_, present)| *present && fixed) {
            self.conflict(name, format!("axis `{}` has a fixed value and cannot have `{key}`", name.value));
        }
        for (key, _) in
            present.iter().filter(|(key, present)| *present && dynamic && !fixed && *key != "dynamic")
        {
            let message = format!("axis `{}` is dynamic and cannot have `{key}`", name.value);
            self.conflict(name, message);
        }
        if !raw.keys.contains(&"role") && !fixed {
            self.missing(name, "role");
        }
        if !raw.keys.contains(&"fuzz") && !fixed && !dynamic {
            self.missing(name, "fuzz");
        }
        if let Some(value) = &raw.value
            && value.value < 1
        {
            self.sink.error(Code::BadNumber, value.span, "a fixed size must be an integer >= 1");
        }
        for size in raw.models.iter().flat_map(|models| &models.value).filter(|size| size.value < 1) {
            self.sink.error(Code::BadNumber, size.span, "a size of a real model must be an integer >= 1");
        }
        self.axis_of(name, raw)
    }

    fn axis_of(&mut self, name: &Spanned<String>, raw: &RawAxis) -> Axis {
        let value = raw.value.as_ref().map(|value| value.value);
        let fuzz = match (value, &raw.fuzz) {
            (Some(value), _) => Fuzz::List(vec![value]),
            (None, Some(fuzz)) => self.fuzz(fuzz),
            (None, None) => Fuzz::Range(0, 0),
        };
        Axis {
            name: name.value.clone(),
            role: raw.role.as_ref().map_or(Role::Count, |role| role.value),
            select: self.select(raw.select.as_ref()),
            fuzz,
            models: raw.models.iter().flat_map(|models| &models.value).map(|size| size.value).collect(),
            value,
            pack: raw.pack.as_ref().is_some_and(|pack| pack.value),
            dynamic: raw.dynamic.as_ref().is_some_and(|dynamic| dynamic.value),
            doc: raw.doc.as_ref().map(|doc| doc.value.clone()).unwrap_or_default(),
            bound_by: None,
        }
    }

    fn select(&mut self, raw: Option<&RawSelect>) -> Select {
        match raw {
            None | Some(RawSelect::Exact) => Select::Exact,
            Some(RawSelect::Ignored) => Select::Ignored,
            Some(RawSelect::Bucket(bounds)) => Select::Bucket(self.bucket_bounds(bounds)),
        }
    }

    /// The upper bounds of buckets.
    pub(super) fn bucket_bounds(&mut self, bounds: &Spanned<Vec<Spanned<i64>>>) -> Vec<i64> {
        if bounds.value.is_empty() {
            self.empty("bucket", bounds.span);
        }
        if let Some(first) = bounds.value.first().filter(|first| first.value < 0) {
            self.sink.error(Code::BadNumber, first.span, "a bucket bound must be an integer >= 0");
        }
        for pair in bounds.value.windows(2) {
            if let [left, right] = pair
                && left.value >= right.value
            {
                let message =
                    format!("bucket bounds must ascend, but {} follows {}", right.value, left.value);
                self.sink.error(Code::BucketOrder, right.span, message);
            }
        }
        bounds.value.iter().map(|bound| bound.value).collect()
    }

    fn fuzz(&mut self, raw: &RawFuzz) -> Fuzz {
        match raw {
            RawFuzz::List(sizes) => {
                if sizes.value.is_empty() {
                    self.sink.error(Code::FuzzEmpty, sizes.span, "the list of sizes is empty");
                }
                for size in sizes.value.iter().filter(|size| size.value < 0) {
                    self.sink.error(Code::BadNumber, size.span, "a size must be an integer >= 0");
                }
                Fuzz::List(sizes.value.iter().map(|size| size.value).collect())
            }
            RawFuzz::Range(text) => match parse_range(&text.value) {
                Some((low, high)) if low <= high => Fuzz::Range(low, high),
                parsed => {
                    self.bad_fuzz_range(text, parsed);
                    Fuzz::Range(0, 0)
                }
            },
        }
    }

    fn bad_fuzz_range(&mut self, text: &Spanned<String>, parsed: Option<(i64, i64)>) {
        let message = match parsed {
            Some(_) => format!("the range `{}` is empty", text.value),
            None => format!("`{}` is not a range of sizes", text.value),
        };
        let suggestion = parsed.map(|(low, high)| format!("{high}..{low}"));
        self.sink
            .error(Code::FuzzEmpty, text.span, message)
            .suggest(suggestion)
            .note("expected `lo..hi`, both inclusive and >= 0, or a list of sizes");
    }

    pub(super) fn conflict(&mut self, name: &Spanned<String>, message: String) {
        self.sink.error(Code::ConflictingKeys, name.span, message);
    }

    pub(super) fn missing(&mut self, name: &Spanned<String>, key: &str) {
        self.sink.error(Code::MissingKey, name.span, format!("`{key}` is missing for `{}`", name.value));
    }

    /// Reports duplicate entries.
    pub(super) fn repeated<'t>(&mut self, items: impl Iterator<Item = (&'t str, Span)>) {
        let mut seen: Vec<(&str, Span)> = Vec::new();
        for (text, span) in items {
            match seen.iter().find(|(earlier, _)| *earlier == text) {
                Some((_, earlier)) => {
                    self.sink
                        .error(Code::RepeatedItem, span, format!("duplicate entry `{text}`"))
                        .also(*earlier, "first entry here");
                }
                None => seen.push((text, span)),
            }
        }
    }
}

fn parse_range(text: &str) -> Option<(i64, i64)> {
    let (low, high) = text.split_once("..")?;
    let size = |text: &str| text.trim().parse::<i64>().ok().filter(|size| *size >= 0);
    Some((size(low)?, size(high)?))
}
