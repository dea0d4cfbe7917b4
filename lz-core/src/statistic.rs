//! Statistics of the values of inputs: numbers on which the speed of kernels depends, such as the load of the busiest expert.
//!
//! A schema declares them as params, and a caller that knows one passes it. A wrong statistic may select a slower kernel and
//! changes nothing else.

use lz_schema::model::{Measure, Operation};

use crate::reason::{Reason, ReasonCode};
use crate::tensor::{Dims, Indices, TensorView};

/// The statistics of an operation that describe `input`, measured on host data: the names of the params and their values.
pub fn of_input(
    operation: &Operation,
    input: &str,
    view: &TensorView<'_>,
) -> Result<Vec<(String, i64)>, Reason> {
    let described = operation.params.iter().filter_map(|param| {
        let statistic = param.statistic.as_ref()?;
        let named = operation.inputs.get(statistic.of)?;
        (named.name == input).then_some((&param.name, statistic.measure))
    });
    described.map(|(name, measure)| Ok((name.clone(), measured(measure, input, view)?))).collect()
}

/// The statistic that a param takes, measured on host data of the input that it describes.
pub fn of_param(operation: &Operation, param: &str, view: &TensorView<'_>) -> Result<i64, Reason> {
    let statistics: Vec<_> = operation
        .params
        .iter()
        .filter_map(|param| Some((param.name.as_str(), param.statistic.as_ref()?)))
        .collect();
    let Some((_, statistic)) = statistics.iter().find(|(name, _)| *name == param) else {
        let names: Vec<&str> = statistics.iter().map(|(name, _)| *name).collect();
        let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!("{} has no statistic `{param}`; it has {known}", operation.name);
        return Err(Reason::new(ReasonCode::UnknownArgument)
            .argument(param)
            .required(known)
            .message(message));
    };
    measured(statistic.measure, operation.inputs.get(statistic.of).map_or("", |input| &input.name), view)
}

fn measured(measure: Measure, input: &str, view: &TensorView<'_>) -> Result<i64, Reason> {
    let refuse = |code: ReasonCode, required: &str, found: String| {
        let message = format!("{input} must be {required} for a statistic of its values, but is {found}");
        Reason::new(code).argument(input).required(required).found(found).message(message)
    };
    if !view.device().is_host() {
        return Err(refuse(ReasonCode::DeviceMismatch, "in host memory", view.device().to_string()));
    }
    if !view.dtype().is_int() {
        return Err(refuse(ReasonCode::DtypeMismatch, "a tensor of integers", view.dtype().to_string()));
    }
    // A dimension without a stride may have any size, whatever memory there is.
    if view.shape().iter().zip(view.strides()).any(|(size, stride)| *size > 1 && *stride == 0) {
        return Err(refuse(ReasonCode::NotContiguous, "without repeated elements", "broadcast".to_owned()));
    }
    if measure == Measure::MaxStep && view.rank() != 1 {
        return Err(refuse(ReasonCode::RankMismatch, "a vector", format!("of rank {}", view.rank())));
    }
    let values = match view.as_slice::<i32>() {
        Some(values) => values.iter().map(|value| i64::from(*value)).collect(),
        None => {
            let shape = Dims::new(view.shape()).unwrap_or_else(Dims::empty);
            Indices::new(&shape).map(|index| view.int_at(&index)).collect()
        }
    };
    Ok(match measure {
        Measure::MaxCount => max_count(values),
        Measure::MaxStep => max_step(&values),
    })
}

/// How often the most frequent value that is not negative occurs.
fn max_count(mut values: Vec<i64>) -> i64 {
    values.retain(|value| *value >= 0);
    values.sort_unstable();
    values.chunk_by(|left, right| left == right).map(|run| run.len() as i64).max().unwrap_or(0)
}

/// The largest difference of adjacent values; 0 if none is larger.
fn max_step(values: &[i64]) -> i64 {
    let steps = values.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    steps.max().unwrap_or(0).max(0)
}

#[cfg(test)]
mod tests {
    use lz_schema::DType;

    use super::*;
    use crate::tensor::Tensor;

    fn view(values: &[i32]) -> Tensor {
        Tensor::from_slice(values, &[values.len() as i64]).unwrap()
    }

    #[test]
    fn counts_leave_out_negative_values() {
        assert_eq!(measured(Measure::MaxCount, "x", &view(&[2, -1, 2, 0, -1, -1, 2]).view()), Ok(3));
        assert_eq!(measured(Measure::MaxCount, "x", &view(&[-1]).view()), Ok(0));
        assert_eq!(measured(Measure::MaxCount, "x", &view(&[]).view()), Ok(0));
    }

    #[test]
    fn steps_are_those_of_pointers_into_rows() {
        assert_eq!(measured(Measure::MaxStep, "x", &view(&[0, 3, 3, 10, 12]).view()), Ok(7));
        assert_eq!(measured(Measure::MaxStep, "x", &view(&[0]).view()), Ok(0));
        // Values that no operation accepts are measured without overflow.
        let extreme = Tensor::from_slice(&[i64::MIN, i64::MAX], &[2]).unwrap();
        assert_eq!(measured(Measure::MaxStep, "x", &extreme.view()), Ok(i64::MAX));
    }

    #[test]
    fn other_tensors_are_refused() {
        let floats = Tensor::zeros(&[2], DType::F32).unwrap();
        let refused = measured(Measure::MaxCount, "indices", &floats.view()).unwrap_err();
        assert_eq!(refused.code, ReasonCode::DtypeMismatch);
        let matrix = Tensor::from_slice(&[0i32; 4], &[2, 2]).unwrap();
        assert_eq!(
            measured(Measure::MaxStep, "p", &matrix.view()).unwrap_err().code,
            ReasonCode::RankMismatch
        );
        assert_eq!(measured(Measure::MaxCount, "p", &matrix.view()), Ok(4));
    }
}
