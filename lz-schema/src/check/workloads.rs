//! Validates `workloads`: each gives a value to every axis, dtype variable and parameter that a call needs, and no others.

use super::Checker;
use super::symbols::Symbol;
use crate::diagnostics::{Code, listed, nearest};
use crate::dtype::DType;
use crate::model::{Axis, Cases, DTypeRef, Input, Kind, Param, TypeVariable, Workload};
use crate::raw::language::{RawOperation, RawWorkload};
use crate::raw::{NamedEntry, OneOrMany};
use crate::source::{Scalar, Span, Spanned};

/// The maximum number of dimensions of a pack.
const MAX_PACK_DIMENSIONS: usize = 5;

/// The validated sections of the operation.
pub(super) struct Sections<'a> {
    pub axes: &'a [Axis],
    pub types: &'a [TypeVariable],
    pub params: &'a [Option<Param>],
    pub inputs: &'a [Option<Input>],
}

impl Checker<'_> {
    pub(super) fn workloads(&mut self, raw: &RawOperation, sections: &Sections<'_>) -> Vec<Workload> {
        let entries = raw.workloads.iter().flat_map(|named| &named.entries);
        entries
            .filter_map(|entry| {
                let raw = entry.value.as_ref()?;
                let read = self.workload(&entry.name, raw, sections);
                self.complete(&entry.name, raw, &read, sections);
                Some(read)
            })
            .collect()
    }

    fn workload(&mut self, name: &Spanned<String>, raw: &RawWorkload, sections: &Sections<'_>) -> Workload {
        let mut read = Workload {
            name: name.value.clone(),
            axes: sections.axes.iter().map(|axis| axis.value.map(|value| vec![value])).collect(),
            types: vec![None; sections.types.len()],
            params: vec![None; sections.params.len()],
            given: sections
                .inputs
                .iter()
                .map(|input| input.as_ref().is_none_or(|input| input.optional.is_none()))
                .collect(),
        };
        // An input with errors may bind any axis.
        let all_read = sections.inputs.iter().all(Option::is_some);
        // `given` is read first, because axes may be named only if the inputs that bind them are passed.
        for entry in raw.entries.iter().filter(|entry| entry.name.value == "given") {
            self.given(entry, sections, &mut read.given);
        }
        for entry in raw.entries.iter().filter(|entry| entry.name.value != "given") {
            let Some(value) = &entry.value else {
                continue;
            };
            if let Some(axis) = self.symbols.axis(&entry.name.value) {
                if self.symbols.axes.get(axis).is_some_and(|symbol| symbol.broken) {
                    continue;
                }
                let passed = |input: usize| !all_read || read.given.get(input).copied().unwrap_or(true);
                read.axes[axis] = self.sizes(&sections.axes[axis], &entry.name, value, &passed);
            } else if let Some(variable) = self.symbols.type_variable(&entry.name.value) {
                read.types[variable] = self.type_choice(&sections.types[variable], value);
            } else if let Some(param) = self.symbols.param(&entry.name.value) {
                let Some(Some(declared)) = sections.params.get(param) else { continue };
                let OneOrMany::One(scalar) = value else {
                    let message = format!("`{}` takes a single value", declared.name);
                    self.sink.error(Code::WorkloadValue, value.span(), message);
                    continue;
                };
                match self.constant(param, declared, &scalar.value) {
                    Ok(constant) => read.params[param] = Some(constant),
                    Err(invalid) => {
                        let message = format!("`{}` {}", declared.name, invalid.problem);
                        self.sink
                            .error(Code::WorkloadValue, scalar.span, message)
                            .suggest(invalid.suggestion);
                    }
                }
            } else {
                self.unknown_in_workload(&entry.name);
            }
        }
        read
    }

    fn unknown_in_workload(&mut self, name: &Spanned<String>) {
        let axes = self.symbols.axes.iter().map(|axis| axis.name.as_str());
        let types = self.symbols.types.iter().map(|variable| variable.name.as_str());
        let params = self.symbols.params.iter().map(|param| param.name.as_str());
        let near = nearest(&name.value, axes.chain(types).chain(params).chain(["given"])).map(str::to_owned);
        let message = format!("the operation has no axis, dtype variable or parameter `{}`", name.value);
        let optional = self.symbols.given.contains(&name.value);
        let error = self.sink.error(Code::WorkloadUnknown, name.span, message);
        error.suggest(near);
        if optional {
            error.note(format!("an optional input is passed with `given: [{}]`", name.value));
        }
    }

    fn given(&mut self, entry: &NamedEntry<OneOrMany>, sections: &Sections<'_>, given: &mut [bool]) {
        let names = match &entry.value {
            Some(OneOrMany::Many(names)) => &names.value,
            Some(OneOrMany::One(one)) => {
                self.sink.error(Code::WorkloadValue, one.span, "`given` must be a list of optional inputs");
                return;
            }
            None => return,
        };
        for name in names {
            let position = sections.inputs.iter().position(|input| {
                input.as_ref().is_some_and(|input| input.name == name.value.text && input.optional.is_some())
            });
            match position {
                Some(position) => given[position] = true,
                None if self.symbols.given.contains(&name.value.text) => {}
                None => {
                    let near = nearest(&name.value.text, self.symbols.given.iter().map(String::as_str))
                        .map(str::to_owned);
                    let message = format!("`{}` is not an optional input", name.value.text);
                    self.sink.error(Code::WorkloadUnknown, name.span, message).suggest(near);
                }
            }
        }
    }

    fn sizes(
        &mut self,
        axis: &Axis,
        name: &Spanned<String>,
        value: &OneOrMany,
        passed: &dyn Fn(usize) -> bool,
    ) -> Option<Vec<i64>> {
        let fixed = axis.value.map(|value| vec![value]);
        if axis.dynamic {
            let message = format!("the size of axis `{}` is known only after the call", axis.name);
            self.sink.error(Code::WorkloadValue, name.span, message);
            return None;
        }
        if let Some(binding) = &axis.bound_by
            && !passed(binding.input)
        {
            let message = format!(
                "axis `{}` is bound by an optional input that this workload does not pass",
                axis.name
            );
            self.sink
                .error(Code::WorkloadValue, name.span, message)
                .note("pass the input with `given: [...]`");
            return None;
        }
        let sizes = match (axis.pack, value) {
            (true, OneOrMany::Many(many)) if many.value.len() <= MAX_PACK_DIMENSIONS => {
                let sizes: Vec<Option<i64>> =
                    many.value.iter().map(|size| self.size(&size.value, size.span)).collect();
                sizes.into_iter().collect::<Option<Vec<i64>>>()?
            }
            (true, _) => {
                let message = format!(
                    "`{}` is a pack and takes a list of up to {MAX_PACK_DIMENSIONS} sizes",
                    axis.name
                );
                self.sink.error(Code::WorkloadValue, value.span(), message);
                return fixed;
            }
            (false, OneOrMany::One(one)) => vec![self.size(&one.value, one.span)?],
            (false, OneOrMany::Many(many)) => {
                self.sink.error(
                    Code::WorkloadValue,
                    many.span,
                    format!("axis `{}` takes a single size", axis.name),
                );
                return fixed;
            }
        };
        if let Some(fixed) = &fixed
            && *fixed != sizes
        {
            let message = format!("axis `{}` is always {}", axis.name, fixed.first().copied().unwrap_or(0));
            self.sink.error(Code::WorkloadValue, value.span(), message);
        }
        Some(sizes)
    }

    fn size(&mut self, scalar: &Scalar, span: Span) -> Option<i64> {
        match scalar.text.parse::<i64>() {
            Ok(size) if size >= 0 && scalar.plain => Some(size),
            _ => {
                self.sink.error(
                    Code::WorkloadValue,
                    span,
                    format!("`{}` is not a size; expected an integer >= 0", scalar.text),
                );
                None
            }
        }
    }

    fn type_choice(&mut self, variable: &TypeVariable, value: &OneOrMany) -> Option<DType> {
        let choices = || variable.dtypes.iter().map(|dtype| dtype.name());
        let text = match value {
            OneOrMany::One(one) => one.value.text.as_str(),
            OneOrMany::Many(_) => "a list",
        };
        let choice = variable.dtypes.iter().find(|dtype| dtype.name() == text);
        if choice.is_none() && self.is_known(variable) {
            let message = format!("`{}` must be one of {}, not `{text}`", variable.name, listed(choices()));
            self.sink.error(Code::WorkloadValue, value.span(), message).suggest(nearest(text, choices()));
        }
        choice.copied()
    }

    /// Reports the values that are missing for a call.
    fn complete(
        &mut self,
        name: &Spanned<String>,
        raw: &RawWorkload,
        read: &Workload,
        sections: &Sections<'_>,
    ) {
        let passed = |input: usize| read.given.get(input).copied().unwrap_or(false);
        let mut missing: Vec<&str> = Vec::new();
        for (axis, sizes) in sections.axes.iter().zip(&read.axes) {
            if sizes.is_none() && axis.bound_by.as_ref().is_some_and(|binding| passed(binding.input)) {
                missing.push(&axis.name);
            }
        }
        for (index, (variable, choice)) in sections.types.iter().zip(&read.types).enumerate() {
            let used = sections.inputs.iter().enumerate().any(|(at, input)| {
                passed(at)
                    && input
                        .as_ref()
                        .is_some_and(|input| input.kind == Kind::Tensor && uses(&input.dtype, index))
            });
            if choice.is_none() && used {
                missing.push(&variable.name);
            }
        }
        for (param, value) in sections.params.iter().zip(&read.params) {
            if let Some(param) = param
                && param.default.is_none()
                && value.is_none()
            {
                missing.push(&param.name);
            }
        }
        // An invalid value has been reported.
        missing.retain(|missing| !raw.entries.iter().any(|entry| entry.name.value == *missing));
        if !missing.is_empty() {
            let noun = if missing.len() == 1 { "value" } else { "values" };
            let message = format!("workload `{}` has no {noun} for {}", name.value, listed(missing));
            self.sink.error(Code::WorkloadMissing, name.span, message);
        }
    }

    /// The slot of a parameter, for evaluation.
    pub(super) fn param_slot(&self, param: usize) -> usize {
        usize::from(self.symbols.slot(Symbol::Param(param)))
    }
}

fn uses(dtype: &Cases<DTypeRef>, variable: usize) -> bool {
    dtype.all().contains(&DTypeRef::Variable(variable))
}
