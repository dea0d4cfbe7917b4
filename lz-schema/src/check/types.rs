//! Validates `types` and the dtypes of inputs and outputs.

use super::Checker;
use crate::diagnostics::{Code, Diagnostic, nearest};
use crate::dtype::DType;
use crate::model::{Cases, DTypeRef, Input, TypeVariable};
use crate::raw::language::RawOperation;
use crate::raw::unknown_dtype;
use crate::source::{Span, Spanned};

/// The section that uses a dtype.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Input,
    Output,
}

impl Checker<'_> {
    pub(super) fn types(&mut self, raw: &RawOperation) -> Vec<TypeVariable> {
        let mut types = Vec::new();
        for entry in raw.types.iter().flat_map(|named| &named.entries) {
            let dtypes = entry.value.as_ref();
            if let Some(dtypes) = dtypes {
                self.repeated(dtypes.value.iter().map(|dtype| (dtype.value.name(), dtype.span)));
                // A list of only unknown dtypes has been reported already.
                if dtypes.value.is_empty()
                    && self.sink.source.slice(dtypes.span).trim_matches(['[', ']', ' ']).is_empty()
                {
                    self.empty(&entry.name.value, dtypes.span);
                }
            }
            let dtypes = dtypes.iter().flat_map(|dtypes| &dtypes.value).map(|dtype| dtype.value).collect();
            types.push(TypeVariable { name: entry.name.value.clone(), dtypes, bound_by: None });
        }
        types
    }

    /// Whether the variable's list of dtypes has no errors.
    pub(super) fn is_known(&self, variable: &TypeVariable) -> bool {
        let broken = |diagnostic: &Diagnostic| diagnostic.code == Code::UnknownDtype;
        !variable.dtypes.is_empty() && !self.sink.diagnostics.iter().any(broken)
    }

    /// Resolves the name of a dtype or of a dtype variable.
    pub(super) fn dtype(&mut self, name: &Spanned<String>, direction: Direction) -> Option<DTypeRef> {
        if let Some(dtype) = DType::ALL.into_iter().find(|dtype| dtype.name() == name.value) {
            return Some(DTypeRef::Fixed(dtype));
        }
        if let Some(index) = self.symbols.type_variable(&name.value) {
            if let Some(symbol) = self.symbols.types.get_mut(index) {
                match direction {
                    Direction::Input => symbol.used_by_input = true,
                    Direction::Output => _ = symbol.used_by_output.get_or_insert(name.span),
                }
            }
            return Some(DTypeRef::Variable(index));
        }
        // Only variables start with a capital letter, which distinguishes an undefined variable from an unknown dtype.
        if name.value.starts_with(|first: char| first.is_ascii_uppercase())
            && DType::parse(&name.value.to_lowercase()).is_none()
        {
            let variables = self.symbols.types.iter().map(|variable| variable.name.as_str());
            let near = nearest(&name.value, variables).map(str::to_owned);
            let message = format!("dtype variable `{}` is not defined", name.value);
            self.sink
                .error(Code::UndefinedTypeVariable, name.span, message)
                .suggest(near)
                .note("variables are defined in `types`: `T: [f32, f16, bf16]`");
        } else {
            unknown_dtype(self.sink, name.span, &name.value);
        }
        None
    }

    /// Determines the input that binds each variable, and reports variables that no input binds.
    pub(super) fn bind_types(&mut self, types: &mut [TypeVariable], inputs: &[Option<Input>]) {
        for (index, variable) in types.iter_mut().enumerate() {
            let uses = |input: &&(usize, &Input)| matches!(&input.1.dtype, Cases::One(DTypeRef::Variable(v)) if *v == index);
            let tensors: Vec<(usize, &Input)> =
                inputs.iter().enumerate().filter_map(|(at, input)| Some((at, input.as_ref()?))).collect();
            let required = tensors.iter().filter(|(_, input)| input.optional.is_none()).find(uses);
            let optional = || tensors.iter().find(uses);
            variable.bound_by = required.or_else(optional).map(|(at, _)| *at);
        }
        let mut findings: Vec<(Code, Span, String, Option<Span>)> = Vec::new();
        for symbol in &self.symbols.types {
            match (symbol.used_by_input, symbol.used_by_output) {
                (true, _) => {}
                (false, None) => {
                    let message = format!("dtype variable `{}` is not used", symbol.name);
                    findings.push((Code::UnusedTypeVariable, symbol.span, message, None));
                }
                (false, Some(span)) => {
                    let message = format!(
                        "no input binds dtype variable `{}`, so its dtype is unknown in a call",
                        symbol.name
                    );
                    findings.push((Code::UnboundTypeVariable, span, message, Some(symbol.span)));
                }
            }
        }
        for (code, span, message, also) in findings {
            let error = self.sink.error(code, span, message);
            if let Some(also) = also {
                error
                    .also(also, "defined here")
                    .note("an enum parameter can select it: `dtype: { by: param, CASE: dtype }`");
            }
        }
    }
}
