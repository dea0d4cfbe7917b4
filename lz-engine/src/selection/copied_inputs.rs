//! Which inputs the engine may copy for a kernel that does not take their strides, from the schema.

use lz_core::context::{FieldKind, Store};
use lz_core::operation::OperationInfo;
use lz_schema::model::{Operation, ValueRule};

use super::split_axis::{mentions, reads};

/// The stride classes of the inputs that are not copied.
pub(crate) fn uncopied(info: &OperationInfo) -> Vec<Store> {
    let schema = info.schema();
    let fields = info.fields.iter().filter(|field| field.kind == FieldKind::Strides);
    let input = |name: &str| {
        let name = name.strip_prefix("strides(")?.strip_suffix(')')?;
        schema.inputs.iter().position(|input| input.name == name)
    };
    let kept = fields.filter(|field| input(&field.name).is_some_and(|input| !is_copied(schema, input)));
    kept.map(|field| field.store).collect()
}

/// Whether an input may be copied. Of a cache or table that another input indexes, a call reads a small part, and an input that is
/// changed in place would have to be copied back.
fn is_copied(schema: &Operation, input: usize) -> bool {
    let Some(about) = schema.inputs.get(input) else { return false };
    let is_indexed = |axis: usize| {
        let has = about.shape.all().iter().flatten().any(|dim| mentions(dim, axis));
        let mut rules = schema.inputs.iter().filter_map(|other| other.values.as_ref());
        has && rules.any(|rule| matches!(rule, ValueRule::IndexInto(text) if reads(text, axis)))
    };
    !about.read_write && !(0..schema.axes.len()).any(is_indexed)
}
