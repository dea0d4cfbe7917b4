//! Validates `inputs` and `outputs`.

use super::Checker;
use super::expressions::ExprContext;
use super::symbols::Symbol;
use super::types::Direction;
use crate::diagnostics::{Code, listed};
use crate::dtype::DType;
use crate::expr::Type;
use crate::model::{
    Cases, Contiguous, DTypeRef, DeviceRule, Dim, Input, Kind, Output, TypeVariable, ValueRule,
};
use crate::raw::language::{Access, RawInput, RawOperation, RawOutput, RawValues};
use crate::raw::{Expression, RawCases};
use crate::source::Spanned;

/// All element types that an argument can have.
pub(super) fn possible(dtype: &Cases<DTypeRef>, types: &[TypeVariable]) -> Vec<DType> {
    let mut possible: Vec<DType> = dtype
        .all()
        .iter()
        .flat_map(|dtype| match dtype {
            DTypeRef::Fixed(dtype) => vec![*dtype],
            DTypeRef::Variable(index) => {
                types.get(*index).map(|variable| variable.dtypes.clone()).unwrap_or_default()
            }
        })
        .collect();
    possible.sort();
    possible.dedup();
    possible
}

type ShapeAndDtype = (Cases<Vec<Dim>>, Cases<DTypeRef>);

impl Checker<'_> {
    /// All inputs in order; `None` for an input with errors.
    pub(super) fn inputs(&mut self, raw: &RawOperation, types: &[TypeVariable]) -> Vec<Option<Input>> {
        let entries = raw.inputs.iter().flat_map(|named| &named.entries);
        entries.map(|entry| self.input(&entry.name, entry.value.as_ref()?, types)).collect()
    }

    fn input(&mut self, name: &Spanned<String>, raw: &RawInput, types: &[TypeVariable]) -> Option<Input> {
        let kind = raw.kind.as_ref().map_or(Kind::Tensor, |kind| kind.value);
        if kind != Kind::Tensor {
            let present = [
                ("broadcast", raw.broadcast.is_some()),
                ("access", raw.access.is_some()),
                ("contiguous", raw.contiguous.is_some()),
                ("device", raw.device.is_some()),
                ("values", raw.values.is_some()),
            ];
            for (key, _) in present.iter().filter(|(_, present)| *present) {
                self.conflict(name, format!("`{}` is not a tensor and cannot have `{key}`", name.value));
            }
        }
        let shape_and_dtype = self.shape_and_dtype(
            name,
            &raw.keys,
            kind,
            raw.shape.as_ref(),
            raw.dtype.as_ref(),
            Direction::Input,
        );
        let optional = raw.optional.as_ref().is_some_and(|optional| optional.value);
        let broadcast = raw.broadcast.as_ref().is_some_and(|broadcast| broadcast.value);
        let read_write = raw.access.as_ref().is_some_and(|access| access.value == Access::ReadWrite);
        if broadcast && read_write {
            self.conflict(name, format!("`{}` is broadcast and cannot be written to", name.value));
        }
        let elements = shape_and_dtype.as_ref().map(|(_, dtype)| possible(dtype, types)).unwrap_or_default();
        let values = match &raw.values {
            Some(values) => Some(self.values(name, values, &elements)?),
            None => None,
        };
        let (shape, dtype) = shape_and_dtype?;
        let given = self.symbols.given.iter().position(|given| *given == name.value);
        Some(Input {
            name: name.value.clone(),
            kind,
            shape,
            dtype,
            optional: given.filter(|_| optional).map(|given| self.symbols.slot(Symbol::Given(given))),
            broadcast,
            read_write,
            contiguous: raw.contiguous.as_ref().map_or(Contiguous::None, |word| word.value),
            device: raw.device.as_ref().map_or(DeviceRule::Same, |word| word.value),
            values,
            doc: raw.doc.as_ref().map(|doc| doc.value.clone()).unwrap_or_default(),
        })
    }

    /// All outputs in order; `None` for an output with errors.
    pub(super) fn outputs(&mut self, raw: &RawOperation, inputs: &[Option<Input>]) -> Vec<Option<Output>> {
        if let Some(outputs) = &raw.outputs
            && outputs.entries.is_empty()
            && !inputs.iter().any(|input| input.as_ref().is_none_or(|input| input.read_write))
        {
            self.sink
                .error(Code::Empty, outputs.span, "the operation has no output")
                .note("only an operation that writes an input in place may have no output");
        }
        let entries = raw.outputs.iter().flat_map(|named| &named.entries);
        entries.map(|entry| self.output(&entry.name, entry.value.as_ref()?)).collect()
    }

    fn output(&mut self, name: &Spanned<String>, raw: &RawOutput) -> Option<Output> {
        let kind = raw.kind.as_ref().map_or(Kind::Tensor, |kind| kind.value);
        if let Some(word) = raw.kind.as_ref().filter(|kind| kind.value == Kind::Tokenizer) {
            self.sink.error(Code::UnknownWord, word.span, "an output must be a `tensor` or a `text`");
            return None;
        }
        let shape_and_dtype = self.shape_and_dtype(
            name,
            &raw.keys,
            kind,
            raw.shape.as_ref(),
            raw.dtype.as_ref(),
            Direction::Output,
        );
        let when = match &raw.when {
            Some(when) => Some(self.expression(when, ExprContext::When, &Type::Bool)?),
            None => None,
        };
        let (shape, dtype) = shape_and_dtype?;
        let doc = raw.doc.as_ref().map(|doc| doc.value.clone()).unwrap_or_default();
        Some(Output { name: name.value.clone(), kind, shape, dtype, when, doc })
    }

    fn shape_and_dtype(
        &mut self,
        name: &Spanned<String>,
        keys: &[&str],
        kind: Kind,
        shape: Option<&RawCases<Spanned<Vec<Expression>>>>,
        dtype: Option<&RawCases<Spanned<String>>>,
        direction: Direction,
    ) -> Option<ShapeAndDtype> {
        // Texts are bytes. The dtype of a tokenizer handle is never used.
        let bytes = Cases::One(DTypeRef::Fixed(DType::U8));
        if kind != Kind::Tensor && dtype.is_some() {
            self.conflict(name, format!("`{}` is not a tensor and cannot have `dtype`", name.value));
        }
        match kind {
            Kind::Tokenizer => {
                if shape.is_some() {
                    self.conflict(name, format!("`{}` is a tokenizer and cannot have `shape`", name.value));
                }
                Some((Cases::One(Vec::new()), bytes))
            }
            Kind::Text => {
                if !keys.contains(&"shape") {
                    self.missing(name, "shape");
                }
                let shape = self.shape(shape?, direction)?;
                let one_axis =
                    matches!(&shape, Cases::One(dims) if matches!(dims.as_slice(), [Dim::Axis(_)]));
                if !one_axis {
                    let message = format!("`{}` is a batch of texts; its shape must be one axis", name.value);
                    self.sink.error(Code::WrongForm, name.span, message);
                    return None;
                }
                Some((shape, bytes))
            }
            Kind::Tensor => {
                if !keys.contains(&"shape") {
                    self.missing(name, "shape");
                }
                if !keys.contains(&"dtype") {
                    self.missing(name, "dtype");
                }
                let shape = shape.and_then(|shape| self.shape(shape, direction));
                let dtype = dtype
                    .and_then(|dtype| self.cases(dtype, &mut |checker, name| checker.dtype(name, direction)));
                shape.zip(dtype)
            }
        }
    }

    fn values(&mut self, name: &Spanned<String>, raw: &RawValues, elements: &[DType]) -> Option<ValueRule> {
        let written = [
            raw.index_into.is_some(),
            raw.between.is_some(),
            raw.indptr_of.is_some(),
            raw.indptr_within.is_some(),
            raw.partition_of.is_some(),
            raw.score_mod.is_some(),
        ];
        if written.iter().filter(|written| **written).count() != 1 {
            if !raw.keys.is_empty() && !written.contains(&true) {
                // The rule has an error, which has been reported.
                return None;
            }
            let message = format!("`values` of `{}` must contain exactly one rule", name.value);
            self.sink.error(Code::ConflictingKeys, raw.span, message).note(
                "the rules are `index_into`, `between`, `indptr_of`, `indptr_within`, `partition_of` and `score_mod`",
            );
            return None;
        }
        if raw.score_mod.is_some() && elements != [DType::U8] {
            let message = format!("`score_mod` is a rule for bytes, but `{}` is not u8", name.value);
            self.sink.error(Code::ConflictingKeys, raw.span, message);
            return None;
        }
        let floats = elements.iter().filter(|dtype| dtype.is_float()).count();
        let mixed = floats > 0 && (floats < elements.len() || raw.between.is_none());
        if mixed || elements.contains(&DType::Bool) {
            let elements = listed(elements.iter().map(|dtype| dtype.name()));
            let message = format!(
                "this rule does not apply to the elements of `{}`, which can be {elements}",
                name.value
            );
            self.sink
                .error(Code::ConflictingKeys, raw.span, message)
                .note("`between` applies to integers and floats, the other rules to integers only");
            return None;
        }
        let bound = if floats > 0 { Type::Float } else { Type::Int };
        let mut size = |expression: &Expression| self.expression(expression, ExprContext::Values, &bound);
        if let Some(expression) = &raw.index_into {
            return size(expression).map(ValueRule::IndexInto);
        }
        if let Some(expression) = &raw.indptr_of {
            return size(expression).map(ValueRule::IndptrOf);
        }
        if let Some(expression) = &raw.indptr_within {
            return size(expression).map(ValueRule::IndptrWithin);
        }
        if let Some(expression) = &raw.partition_of {
            return size(expression).map(ValueRule::PartitionOf);
        }
        if let Some(expression) = &raw.score_mod {
            return size(expression).map(ValueRule::ScoreMod);
        }
        let bounds = raw.between.as_ref()?;
        let [low, high] = bounds.value.as_slice() else {
            self.sink.error(Code::WrongForm, bounds.span, "`between` takes two bounds: `[lowest, highest]`");
            return None;
        };
        let (low, high) = (size(low), size(high));
        Some(ValueRule::Between(low?, high?))
    }
}
