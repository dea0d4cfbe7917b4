//! Validates `equivalence`: exactly one comparison method, and tolerances for exactly the possible output dtypes.

use super::Checker;
use super::arguments::possible;
use crate::diagnostics::{Code, listed};
use crate::dtype::DType;
use crate::model::{Equivalence, Input, Kind, Output, TypeVariable};
use crate::raw::Named;
use crate::raw::language::RawOperation;
use crate::raw::unknown_dtype;
use crate::source::Spanned;

impl Checker<'_> {
    pub(super) fn equivalence(
        &mut self,
        raw: &RawOperation,
        types: &[TypeVariable],
        inputs: &[Option<Input>],
        outputs: &[Option<Output>],
    ) -> Option<Equivalence> {
        let raw = raw.equivalence.as_ref()?;
        let methods = [raw.close.is_some(), raw.exact.is_some(), raw.distribution.is_some()];
        if methods.iter().filter(|given| **given).count() != 1 {
            self.sink
                .error(
                    Code::ConflictingKeys,
                    raw.span,
                    "`equivalence` must contain exactly one comparison method",
                )
                .note("expected one of `close`, `exact` and `distribution`");
            return None;
        }
        if let Some(exact) = &raw.exact {
            if !exact.value {
                self.sink.error(Code::ConflictingKeys, exact.span, "`exact` must be `true` or absent");
            }
            return Some(Equivalence::Exact);
        }
        if let Some(distribution) = &raw.distribution {
            let significance = distribution.significance.as_ref()?;
            if !(significance.value > 0.0 && significance.value < 1.0) {
                self.sink.error(Code::BadNumber, significance.span, "a significance must be between 0 and 1");
            }
            return Some(Equivalence::Distribution(significance.value));
        }
        let close = raw.close.as_ref()?;
        let tolerances = self.tolerances(close);
        let all_read = inputs.iter().all(Option::is_some)
            && outputs.iter().all(Option::is_some)
            && types.iter().all(|variable| self.is_known(variable));
        if all_read {
            self.cover(close, &tolerances, &result_dtypes(types, inputs, outputs));
        }
        Some(Equivalence::Close(tolerances))
    }

    fn tolerances(&mut self, close: &Named<Spanned<Vec<Spanned<f64>>>>) -> Vec<(DType, f64, f64)> {
        let mut tolerances = Vec::new();
        for entry in &close.entries {
            let Some(dtype) = DType::ALL.into_iter().find(|dtype| dtype.name() == entry.name.value) else {
                unknown_dtype(self.sink, entry.name.span, &entry.name.value);
                continue;
            };
            let Some(pair) = &entry.value else { continue };
            for number in pair.value.iter().filter(|number| number.value < 0.0) {
                self.sink.error(Code::BadNumber, number.span, "a tolerance cannot be negative");
            }
            match pair.value.as_slice() {
                [rtol, atol] => tolerances.push((dtype, rtol.value, atol.value)),
                _ => {
                    self.sink.error(Code::WrongForm, pair.span, "a tolerance must be `[rtol, atol]`");
                }
            }
        }
        tolerances
    }

    fn cover(
        &mut self,
        close: &Named<Spanned<Vec<Spanned<f64>>>>,
        found: &[(DType, f64, f64)],
        possible: &[DType],
    ) {
        let needed: Vec<DType> = possible.iter().copied().filter(|dtype| dtype.is_float()).collect();
        for entry in &close.entries {
            let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == entry.name.value);
            let Some(dtype) = dtype.filter(|dtype| !possible.contains(dtype) || *dtype == DType::Bool) else {
                continue;
            };
            let error = self.sink.error(
                Code::ImpossibleTolerance,
                entry.name.span,
                format!("no output can have dtype {dtype}"),
            );
            match (dtype.is_float(), needed.is_empty()) {
                (false, _) => error.note("integers without a tolerance and bools are compared exactly"),
                (true, true) => error.note("no output is floating point; use `exact: true`"),
                (true, false) => error
                    .note(format!("outputs can have {}", listed(needed.iter().map(|dtype| dtype.name())))),
            };
        }
        let missing: Vec<&str> = needed
            .iter()
            .filter(|dtype| !close.entries.iter().any(|entry| entry.name.value == dtype.name()))
            .map(|dtype| dtype.name())
            .collect();
        // An entry with errors has been reported.
        if !missing.is_empty() && found.len() <= close.entries.len() {
            let message =
                format!("missing tolerance for {}, which outputs can have", listed(missing.iter().copied()));
            self.sink.error(Code::MissingTolerance, close.span, message);
        }
    }
}

/// The dtypes that results can have. Inputs that are written in place are results, too.
fn result_dtypes(types: &[TypeVariable], inputs: &[Option<Input>], outputs: &[Option<Output>]) -> Vec<DType> {
    let in_place = inputs.iter().flatten().filter(|input| input.read_write).map(|input| &input.dtype);
    let output_dtypes =
        outputs.iter().flatten().filter(|output| output.kind == Kind::Tensor).map(|output| &output.dtype);
    let all = output_dtypes.chain(in_place).flat_map(|dtype| possible(dtype, types));
    let mut dtypes: Vec<DType> = all.collect();
    dtypes.sort();
    dtypes.dedup();
    dtypes
}
