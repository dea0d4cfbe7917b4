//! The words of a bucket as sizes and conditions: the reverse of [`lz_engine::bucket::Bucket`].

use lz_core::context::{Context, FLAG_WORDS, Field, FieldKind, Store};
use lz_core::{OperationInfo, expression_names};
use serde::Serialize;

/// A bucket for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BucketLabel {
    /// The sizes of each axis that selection distinguishes.
    pub axes: Vec<AxisRange>,
    /// Everything else: params, optional inputs that are given, strided inputs.
    pub variant: String,
}

/// The sizes of an axis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AxisRange {
    /// The axis.
    pub name: String,
    /// The smallest size.
    pub low: i64,
    /// The largest size; `None` if there is none.
    pub high: Option<i64>,
}

/// The stride class of a tensor that is given and not dense.
const PRESENT: u64 = 1;
const DENSE: u64 = 1 << 1;

/// Decodes the words of a bucket of an operation.
pub fn label(operation: &OperationInfo, words: &[u64]) -> BucketLabel {
    let mut context = Context::of(&operation.fields);
    let (mut axes, mut variant) = (Vec::new(), Vec::new());
    for field in operation.fields.iter() {
        match (field.store, &field.kind) {
            (Store::Axis(axis), kind) => {
                let buckets = kind.buckets().flatten();
                let word = words.get(FLAG_WORDS + usize::from(axis)).copied().unwrap_or_default();
                // Selection ignores an axis with one bucket, and a statistic that is unknown.
                let is_statistic = matches!(kind, FieldKind::Statistic { .. });
                if buckets.is_none_or(|bounds| !bounds.is_empty()) && !(is_statistic && word == 0) {
                    axes.push(range(field, buckets, word));
                }
            }
            (Store::Flag { word, shift, bits }, _) => {
                let word = words.get(usize::from(word)).copied().unwrap_or_default();
                let raw = word >> shift & ((1 << bits) - 1);
                context.set(field.store, raw);
                variant.extend(condition(field, &context, raw));
            }
            _ => {}
        }
    }
    BucketLabel { axes, variant: variant.join(", ") }
}

/// The bucket of an operation in words, from the text of its words: `rows 17..64, hidden 4096; weight`.
pub fn bucket_text(operation: &OperationInfo, bucket: &str) -> String {
    let Ok(bucket) = bucket.parse::<lz_perfdb::Bucket>() else { return String::new() };
    let label = label(operation, bucket.words());
    let axis = |axis: &AxisRange| match axis.high {
        Some(high) if high == axis.low => format!("{} {high}", axis.name),
        Some(high) => format!("{} {}..{high}", axis.name, axis.low),
        None => format!("{} {}..", axis.name, axis.low),
    };
    let axes: Vec<String> = label.axes.iter().map(axis).collect();
    let parts = [axes.join(", "), label.variant];
    parts.iter().filter(|part| !part.is_empty()).map(String::as_str).collect::<Vec<_>>().join("; ")
}

fn range(field: &Field, bounds: Option<&[i64]>, word: u64) -> AxisRange {
    let name = field.name.to_string();
    let word = usize::try_from(word).unwrap_or(usize::MAX);
    let Some(bounds) = bounds else {
        let size = i64::try_from(word).unwrap_or(i64::MAX);
        return AxisRange { name, low: size, high: Some(size) };
    };
    let low = word.checked_sub(1).and_then(|before| bounds.get(before)).map_or(0, |bound| bound + 1);
    AxisRange { name, low, high: bounds.get(word).copied() }
}

fn condition(field: &Field, context: &Context, raw: u64) -> Option<String> {
    match &field.kind {
        FieldKind::Bool => (raw == 1).then(|| field.name.to_string()),
        FieldKind::Given => {
            (raw == 1).then(|| expression_names::show(field, context)).map(|_| field.name.to_string())
        }
        FieldKind::Enum(_) => Some(format!("{}={}", field.name, expression_names::show(field, context))),
        FieldKind::Strides => {
            (raw & (PRESENT | DENSE) == PRESENT).then(|| format!("{} not dense", field.name))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz_engine::bucket::Bucket;

    fn label_of(name: &str, call: &str) -> BucketLabel {
        let operation = lz_ops::OPERATIONS.iter().copied().find(|operation| operation.name == name).unwrap();
        let context = crate::call::context(operation, call).unwrap();
        label(operation, Bucket::of(operation, &context).words())
    }

    #[test]
    fn sizes_lie_in_the_ranges_of_their_bucket() {
        let label = label_of("norm.rms", "x=f32[20,64] weight=f32[64]");
        let rows = label.axes.iter().find(|axis| axis.name == "rows").unwrap();
        assert!(rows.low <= 20 && rows.high.is_none_or(|high| 20 <= high), "{rows:?}");
        let hidden = label.axes.iter().find(|axis| axis.name == "hidden").unwrap();
        assert_eq!((hidden.low, hidden.high), (64, Some(64)));
        assert!(label.variant.contains("weight"), "{}", label.variant);
    }

    #[test]
    fn bucket_is_readable_text() {
        let operation = lz_ops::OPERATIONS.iter().copied().find(|one| one.name == "norm.rms").unwrap();
        let context = crate::call::context(operation, "x=f32[20,64] weight=f32[64]").unwrap();
        let words = Bucket::of(operation, &context);
        let text = bucket_text(operation, &lz_perfdb::Bucket::from(words.words()).to_string());
        assert!(text.contains("hidden 64") && text.contains("weight"), "{text}");
        assert_eq!(bucket_text(operation, "nonsense"), "");
    }

    #[test]
    fn flags_are_named() {
        let call = "q=f32[1,8,4,64] k=f32[1,8,4,64] v=f32[1,8,4,64]";
        let plain = label_of("attention.standard.prefill", call).variant;
        let causal = label_of("attention.standard.prefill", &format!("{call} causal=true")).variant;
        assert!(!plain.contains("causal") && causal.contains("causal"), "{plain}; {causal}");
    }
}
