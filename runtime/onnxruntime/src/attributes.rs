//! Reads the params of an operation from the attributes of a node.

use std::ffi::CString;

use lz_core::expr::Value;
use lz_schema::model::{Param, ParamType};

use crate::api::{Api, KernelInfo};
use crate::catalog::{Variant, cases};

/// An attribute, of whichever type it has.
#[derive(Debug, PartialEq)]
enum Attribute {
    Float(f32),
    Int(i64),
    Text(String),
}

/// The params of a node in the schema's order; `None` is the default of the schema. Attributes of another type are refused, so that
/// none is ignored.
pub fn params(api: Api, info: *const KernelInfo, variant: &Variant) -> Result<Vec<Option<Value>>, String> {
    let params = variant.operation.schema().params.iter().enumerate();
    params
        .map(|(at, param)| {
            let name = CString::new(param.name.as_str()).map_err(|error| error.to_string())?;
            // A float attribute can be read as nothing else, so the order of the attempts does not matter.
            let float = || api.float(info, &name).map(Attribute::Float);
            let int = || api.int(info, &name).map(Attribute::Int);
            let text = || api.string(info, &name).map(Attribute::Text);
            let attribute = float().or_else(int).or_else(text);
            match variant.fixed.iter().find(|(fixed, _)| *fixed == at) {
                Some((_, case)) if attribute.is_none() => Ok(Some(Value::Enum(*case))),
                Some(_) => {
                    Err(format!("attribute `{}` is part of the op type {}", param.name, variant.op_type))
                }
                None => attribute.map(|attribute| value(param, attribute)).transpose(),
            }
            .map_err(|problem| format!("{}: {problem}", variant.op_type))
        })
        .collect()
}

/// The value of a param.
fn value(param: &Param, attribute: Attribute) -> Result<Value, String> {
    let expected = match (&param.ty, &attribute) {
        (ParamType::Int, Attribute::Int(value)) => return Ok(Value::Int(*value)),
        (ParamType::F32 | ParamType::F64, Attribute::Float(value)) => {
            return Ok(Value::Float(f64::from(*value)));
        }
        (ParamType::F32 | ParamType::F64, Attribute::Int(value)) => return Ok(Value::Float(*value as f64)),
        (ParamType::Bool, Attribute::Int(value @ (0 | 1))) => return Ok(Value::Bool(*value == 1)),
        (ParamType::Enum(cases), Attribute::Text(text)) => {
            if let Some(case) = cases.iter().position(|case| case == text) {
                return Ok(Value::Enum(case as u32));
            }
            format!("one of {}", cases.join(", "))
        }
        (ParamType::Int, _) => "an int".to_owned(),
        (ParamType::F32 | ParamType::F64, _) => "a float".to_owned(),
        (ParamType::Bool, _) => "the int 0 or 1".to_owned(),
        (ParamType::Enum(_), _) => format!("a string, one of {}", cases(&param.ty).join(", ")),
    };
    let found = match attribute {
        Attribute::Float(value) => format!("the float {value}"),
        Attribute::Int(value) => format!("the int {value}"),
        Attribute::Text(text) => format!("the string `{text}`"),
    };
    Err(format!("attribute `{}` must be {expected}, and is {found}", param.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(operation: &str, name: &str) -> Param {
        let info = lz_ops::OPERATIONS.iter().find(|info| info.name == operation).unwrap();
        info.schema().params.iter().find(|param| param.name == name).unwrap().clone()
    }

    #[test]
    fn attributes_have_the_type_of_the_param() {
        let eps = param("norm.rms", "eps");
        assert_eq!(value(&eps, Attribute::Float(0.5)), Ok(Value::Float(0.5)));
        assert_eq!(value(&eps, Attribute::Int(1)), Ok(Value::Float(1.0)));
        let problem = value(&eps, Attribute::Text("small".to_owned())).unwrap_err();
        assert_eq!(problem, "attribute `eps` must be a float, and is the string `small`");
        let causal = param("attention.gqa.prefill", "causal");
        assert_eq!(value(&causal, Attribute::Int(1)), Ok(Value::Bool(true)));
        let problem = value(&causal, Attribute::Int(2)).unwrap_err();
        assert_eq!(problem, "attribute `causal` must be the int 0 or 1, and is the int 2");
        let layout = param("attention.gqa.prefill", "layout");
        assert_eq!(value(&layout, Attribute::Text("BHSD".to_owned())), Ok(Value::Enum(1)));
        let problem = value(&layout, Attribute::Text("SBHD".to_owned())).unwrap_err();
        assert!(problem.starts_with("attribute `layout` must be one of BSHD, BHSD"), "{problem}");
    }
}
