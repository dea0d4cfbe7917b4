//! Validates export options against the operation.

use lz_schema::diagnostics::nearest;
use lz_schema::dtype::DType;
use lz_schema::expr::{Typed, Value};
use lz_schema::model::{Constant, Operation, ParamType};

use super::ExportOptions;
use crate::error::ExportError;

fn suggestion<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    nearest(name, known).map(str::to_owned)
}

pub(super) fn sizes(operation: &Operation, options: &ExportOptions) -> Result<Vec<Option<i64>>, ExportError> {
    let mut sizes: Vec<Option<i64>> = operation.axes.iter().map(|axis| axis.value).collect();
    for (name, size) in &options.axes {
        let place = operation.axes.iter().zip(&mut sizes).find(|(axis, _)| axis.name == *name);
        let Some((axis, place)) = place else {
            let suggestion = suggestion(name, operation.axes.iter().map(|axis| axis.name.as_str()));
            return Err(ExportError::UnknownAxis { axis: name.clone(), suggestion });
        };
        if *size < 0 || axis.value.is_some_and(|fixed| fixed != *size) {
            return Err(ExportError::BadSize { axis: name.clone(), size: *size, fixed: axis.value });
        }
        *place = Some(*size);
    }
    Ok(sizes)
}

pub(super) fn dtypes(operation: &Operation, options: &ExportOptions) -> Result<Vec<DType>, ExportError> {
    let known = || operation.types.iter().map(|variable| variable.name.as_str());
    if let Some(name) = options.dtypes.keys().find(|name| !known().any(|known| known == name.as_str())) {
        let suggestion = suggestion(name, known());
        return Err(ExportError::UnknownTypeVariable { variable: name.clone(), suggestion });
    }
    let workload = operation.workloads.first();
    let dtypes = operation.types.iter().enumerate().map(|(at, variable)| {
        let usual = workload.and_then(|workload| workload.types.get(at).copied().flatten());
        let first = variable.dtypes.first().copied();
        match options.dtypes.get(&variable.name) {
            Some(dtype) if !variable.dtypes.contains(dtype) => {
                Err(ExportError::DtypeNotAllowed { variable: variable.name.clone(), dtype: dtype.name() })
            }
            Some(dtype) => Ok(*dtype),
            None => Ok(usual.or(first).unwrap_or(DType::F32)),
        }
    });
    dtypes.collect()
}

pub(super) fn cases(operation: &Operation, options: &ExportOptions) -> Result<Vec<Option<u32>>, ExportError> {
    let enums = || operation.params.iter().filter(|param| matches!(param.ty, ParamType::Enum(_)));
    if let Some(name) = options.cases.keys().find(|name| !enums().any(|param| param.name == **name)) {
        let suggestion = suggestion(name, enums().map(|param| param.name.as_str()));
        return Err(ExportError::UnknownEnum { param: name.clone(), suggestion });
    }
    let mut chosen: Vec<Option<u32>> = Vec::with_capacity(operation.params.len());
    for (at, param) in operation.params.iter().enumerate() {
        let ParamType::Enum(values) = &param.ty else {
            chosen.push(None);
            continue;
        };
        let usual = operation.workloads.first().and_then(|workload| workload.params.get(at)?.clone());
        let default = || match param.default.as_ref().and_then(Typed::fold_constant) {
            Some(Value::Enum(case)) => case,
            _ => 0,
        };
        chosen.push(Some(match (options.cases.get(&param.name), usual) {
            (Some(case), _) => {
                let found = values.iter().position(|value| value == case);
                let unknown = || ExportError::UnknownCase {
                    param: param.name.clone(),
                    case: case.clone(),
                    suggestion: suggestion(case, values.iter().map(String::as_str)),
                };
                found.and_then(|found| u32::try_from(found).ok()).ok_or_else(unknown)?
            }
            (None, Some(Constant::Enum(case))) => case,
            (None, _) => default(),
        }));
    }
    Ok(chosen)
}
