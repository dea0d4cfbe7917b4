//! Validates statistics: params that describe the values of an input and affect only which kernel is selected.

use super::Checker;
use crate::diagnostics::{Code, nearest};
use crate::expr::{self, Type};
use crate::model::{DTypeRef, Dim, Input, Kind, Measure, Param, ParamType, Statistic, TypeVariable};
use crate::raw::language::{RawOperation, RawParam, RawStatistic};
use crate::source::Spanned;

/// The value of a statistic that is unknown: the default, and the bound of a bucket of its own.
const UNKNOWN: i64 = -1;

impl Checker<'_> {
    /// A param with `statistic`: an int whose default means that it is unknown.
    pub(super) fn statistic_param(
        &mut self,
        operation: &RawOperation,
        name: &Spanned<String>,
        ty: &ParamType,
        raw: &RawParam,
        statistic: &RawStatistic,
    ) -> Option<Param> {
        if *ty != ParamType::Int {
            self.conflict(name, format!("`{}` is a statistic, so its type must be `int`", name.value));
            return None;
        }
        for (key, is_stated) in [("default", raw.default.is_some()), ("range", raw.range.is_some())] {
            if is_stated {
                let message = format!("`{}` is a statistic and cannot have `{key}`", name.value);
                self.sink
                    .error(Code::ConflictingKeys, name.span, message)
                    .note("the default of a statistic is -1, which means that it is unknown");
            }
        }
        let mut inputs = operation.inputs.iter().flat_map(|named| &named.entries);
        let stated = statistic.of.as_ref()?;
        let Some(of) = inputs.clone().position(|input| input.name.value == stated.value) else {
            let near = nearest(&stated.value, inputs.by_ref().map(|input| input.name.value.as_str()));
            let near = near.map(str::to_owned);
            let message = format!("input `{}` is not defined", stated.value);
            self.sink.error(Code::UndefinedInput, stated.span, message).suggest(near);
            return None;
        };
        let mut bounds = vec![UNKNOWN];
        bounds.extend(self.bucket_bounds(statistic.bucket.as_ref()?));
        let range = format!("{} >= {UNKNOWN}", name.value);
        Some(Param {
            name: name.value.clone(),
            ty: ParamType::Int,
            default: expr::check_expecting(&UNKNOWN.to_string(), &self.symbols, &Type::Int).ok(),
            range: expr::check_expecting(&range, &self.symbols, &Type::Bool).ok(),
            range_text: format!(">= {UNKNOWN}"),
            statistic: Some(Statistic { of, measure: statistic.measure.as_ref()?.value, bounds }),
            doc: raw.doc.as_ref().map(|doc| doc.value.clone()).unwrap_or_default(),
        })
    }

    /// Statistics stand behind the other params, so that kernels which do not receive them get a prefix.
    pub(super) fn statistics_are_last(&mut self, raw: &RawOperation) {
        let entries = raw.params.iter().flat_map(|named| &named.entries);
        let is_statistic =
            |param: &Option<RawParam>| param.as_ref().is_some_and(|param| param.statistic.is_some());
        let behind = entries.skip_while(|entry| !is_statistic(&entry.value));
        for entry in behind.filter(|entry| !is_statistic(&entry.value)) {
            let message = format!("`{}` must stand before the statistics", entry.name.value);
            self.sink.error(Code::ConflictingKeys, entry.name.span, message);
        }
    }

    /// Statistics describe tensors of integers; steps are those of a vector.
    pub(super) fn statistics(
        &mut self,
        raw: &RawOperation,
        types: &[TypeVariable],
        params: &[Option<Param>],
        inputs: &[Option<Input>],
    ) {
        let entries = raw.params.iter().flat_map(|named| &named.entries);
        for (entry, param) in entries.zip(params) {
            let Some(statistic) = param.as_ref().and_then(|param| param.statistic.as_ref()) else { continue };
            let Some(Some(input)) = inputs.get(statistic.of) else { continue };
            let is_int = input.dtype.all().iter().all(|dtype| match dtype {
                DTypeRef::Fixed(dtype) => dtype.is_int(),
                DTypeRef::Variable(index) => {
                    types.get(*index).is_some_and(|variable| variable.dtypes.iter().all(|one| one.is_int()))
                }
            });
            let problem = if input.kind != Kind::Tensor || !is_int {
                "is not a tensor of integers"
            } else if statistic.measure == Measure::MaxStep
                && !input
                    .shape
                    .all()
                    .iter()
                    .all(|shape| matches!(&shape[..], [dim] if !matches!(dim, Dim::Pack(_))))
            {
                "is not a vector"
            } else {
                continue;
            };
            let message = format!("`{}` {problem}, so it has no such statistic", input.name);
            let span = entry.value.as_ref().and_then(|raw| raw.statistic.as_ref()?.of.as_ref());
            self.sink.error(Code::ConflictingKeys, span.map_or(entry.name.span, |of| of.span), message);
        }
    }
}
