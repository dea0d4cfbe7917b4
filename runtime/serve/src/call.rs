//! Calls as text: `x=f32[4,64] weight=f32[64] eps=1e-5`, for explanations of calls that are not made.
//!
//! Tensors are described only: no memory is allocated for them and their values are not checked.

use lz_core::expr::Value;
use lz_core::tensor::Layout;
use lz_core::{Arg, Context, DType, OperationInfo, TensorMut, TensorView, check, dynamic};
use lz_schema::expr::Program;
use lz_schema::model::{Cases, Constant, DTypeRef, Dim, Input, Kind, Operation, Param, ParamType, Workload};

/// Distance between the addresses that stand for tensors: larger than any tensor, and aligned.
const ADDRESS_SPACING_BITS: u32 = 40;

/// The context of a call as text.
pub fn context(operation: &OperationInfo, text: &str) -> Result<Context, String> {
    let schema = operation.schema();
    let mut args: Vec<Arg<'static>> = Vec::new();
    args.resize_with(schema.inputs.len() + schema.params.len(), Arg::default);
    for word in words(text)? {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("expected NAME=VALUE, found `{word}`; for example x=f32[4,64]"))?;
        let position = position(schema, name)?;
        let arg = match position.checked_sub(schema.inputs.len()) {
            None => tensor(&schema.inputs[position], value, position)?,
            Some(param) => Arg::Value(param_value(&schema.params[param], value)?),
        };
        args[position] = arg;
    }
    let bound = check::check_planned_call(schema, &args, None).map_err(|error| error.to_string())?;
    dynamic::context(schema, &bound, &args, None).map_err(|error| error.to_string())
}

/// The words of a call: separated by spaces outside of brackets.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0usize);
    for character in text.chars() {
        match character {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1).ok_or("`]` without `[`")?,
            _ => {}
        }
        if !character.is_whitespace() {
            word.push(character);
        } else if depth == 0 && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
    }
    if depth > 0 {
        return Err("`[` without `]`".to_owned());
    }
    words.extend(Some(word).filter(|word| !word.is_empty()));
    Ok(words)
}

fn position(schema: &Operation, name: &str) -> Result<usize, String> {
    let names = || {
        let inputs = schema.inputs.iter().map(|input| input.name.as_str());
        inputs.chain(schema.params.iter().map(|param| param.name.as_str()))
    };
    names().position(|known| known == name).ok_or_else(|| {
        let near = lz_schema::diagnostics::nearest(name, names());
        let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        format!("{} has no argument `{name}`{hint}", schema.name)
    })
}

fn tensor(input: &Input, text: &str, position: usize) -> Result<Arg<'static>, String> {
    let name = &input.name;
    if input.kind != Kind::Tensor {
        return Err(format!("`{name}` is not a tensor; only calls with tensors and params can be described"));
    }
    let wrong = || format!("`{name}`: expected a dtype and sizes such as f32[4,64], found `{text}`");
    let (dtype, sizes) = text.strip_suffix(']').and_then(|text| text.split_once('[')).ok_or_else(wrong)?;
    let dtype = DType::parse(dtype).ok_or_else(|| {
        let known: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        format!("`{name}`: unknown dtype `{dtype}`; expected one of {}", known.join(", "))
    })?;
    let sizes = sizes.split(',').filter(|size| !size.is_empty());
    let sizes: Vec<i64> = sizes.map(|size| size.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    let layout = Layout::contiguous(&sizes, dtype).map_err(|problem| format!("`{name}`: {problem}"))?;
    let address = (position + 1) << ADDRESS_SPACING_BITS;
    let address = std::ptr::without_provenance_mut::<u8>(address);
    // SAFETY: the views describe no memory; only their metadata and address are used.
    Ok(unsafe {
        if input.read_write {
            Arg::TensorMut(TensorMut::from_raw(address, layout))
        } else {
            Arg::Tensor(TensorView::from_raw(address, layout))
        }
    })
}

fn param_value(param: &Param, text: &str) -> Result<Value, String> {
    let parsed = match &param.ty {
        ParamType::Int => text.parse().ok().map(Value::Int),
        ParamType::F32 => text.parse().ok().map(|value: f32| Value::Float(f64::from(value))),
        ParamType::F64 => text.parse().ok().map(Value::Float),
        ParamType::Bool => text.parse().ok().map(Value::Bool),
        ParamType::Enum(cases) => cases
            .iter()
            .position(|case| case == text)
            .and_then(|case| u32::try_from(case).ok())
            .map(Value::Enum),
    };
    let expected = match &param.ty {
        ParamType::Int => "an integer".to_owned(),
        ParamType::F32 | ParamType::F64 => "a number".to_owned(),
        ParamType::Bool => "true or false".to_owned(),
        ParamType::Enum(cases) => format!("one of {}", cases.join(", ")),
    };
    parsed.ok_or_else(|| format!("`{}`: expected {expected}, found `{text}`", param.name))
}

/// The workloads of an operation as texts that [`context`] reads, with their names. Operations on texts have none.
pub fn examples(operation: &OperationInfo) -> Vec<(String, String)> {
    let schema = operation.schema();
    let of = |workload: &Workload| Some((workload.name.clone(), example(schema, workload)?));
    schema.workloads.iter().filter_map(of).collect()
}

fn example(schema: &Operation, workload: &Workload) -> Option<String> {
    let values = workload.values(schema)?;
    let mut words = Vec::new();
    for (input, _) in schema.inputs.iter().zip(&workload.given).filter(|(_, given)| **given) {
        if input.kind != Kind::Tensor {
            return None;
        }
        let dtype = match case(schema, &values, &input.dtype)? {
            DTypeRef::Fixed(dtype) => *dtype,
            DTypeRef::Variable(variable) => (*workload.types.get(*variable)?)?,
        };
        let mut sizes = Vec::new();
        for dim in case(schema, &values, &input.shape)? {
            sizes.extend(self::sizes(dim, workload, &values)?);
        }
        let sizes: Vec<String> = sizes.iter().map(i64::to_string).collect();
        words.push(format!("{}={}[{}]", input.name, dtype.name(), sizes.join(",")));
    }
    for (param, constant) in schema.params.iter().zip(&workload.params) {
        let text = match constant {
            None => continue,
            Some(Constant::Int(value)) => value.to_string(),
            Some(Constant::Float(value)) => value.to_string(),
            Some(Constant::Bool(value)) => value.to_string(),
            Some(Constant::Enum(case)) => match &param.ty {
                ParamType::Enum(cases) => cases.get(*case as usize)?.clone(),
                _ => continue,
            },
        };
        words.push(format!("{}={text}", param.name));
    }
    Some(words.join(" "))
}

fn case<'a, T>(schema: &Operation, values: &[Value], cases: &'a Cases<T>) -> Option<&'a T> {
    match cases {
        Cases::One(only) => Some(only),
        Cases::By(param, cases) => match values.get(schema.axes.len() + param) {
            Some(Value::Enum(case)) => cases.get(*case as usize),
            _ => None,
        },
    }
}

fn sizes(dim: &Dim, workload: &Workload, values: &[Value]) -> Option<Vec<i64>> {
    let axis = |axis: usize| workload.axes.get(axis)?.clone();
    match dim {
        Dim::Axis(index) | Dim::Pack(index) => axis(*index),
        Dim::Fixed(size) => Some(vec![*size]),
        Dim::Offset(index, offset) => Some(vec![axis(*index)?.first()? + offset]),
        Dim::Expr(expression) => Program::compile(expression).eval_int(values).ok().map(|size| vec![size]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(name: &str) -> &'static OperationInfo {
        lz_ops::OPERATIONS.iter().copied().find(|operation| operation.name == name).unwrap()
    }

    #[test]
    fn workloads_of_every_operation_are_valid_calls() {
        let mut count = 0;
        for operation in lz_ops::OPERATIONS {
            for (name, text) in examples(operation) {
                let outcome = context(operation, &text);
                assert!(outcome.is_ok(), "{} {name}: {text}: {outcome:?}", operation.name);
                count += 1;
            }
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn sizes_and_params_are_in_the_context() {
        let rms = operation("norm.rms");
        let context = context(rms, "x=bfloat16[4, 64] weight=bf16[64]  eps=0.5").unwrap();
        let show = |name| lz_core::expression_names::show(rms.field(name).unwrap(), &context);
        assert_eq!((show("hidden"), show("eps"), show("T")), ("64".into(), "0.5".into(), "bf16".into()));
    }

    #[test]
    fn mistakes_are_reported() {
        let rms = operation("norm.rms");
        for (text, expected) in [
            ("x", "expected NAME=VALUE"),
            ("x=f32[4,64] hiden=f32[64] weigth=f32[64]", "has no argument `hiden`"), // typos:ignore
            ("x=f31[4,64]", "unknown dtype `f31`"),
            ("x=f32[4,a]", "such as f32[4,64]"),
            ("x=f32[4", "`[` without `]`"),
            ("x=f32[4,64] eps=small", "expected a number"),
            ("x=f32[4,64] weight=f32[65]", "weight"),
            ("weight=f32[64]", "x must be given"),
        ] {
            let message = context(rms, text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        let encode = operation("tokenize.encode");
        assert!(context(encode, "texts=a").unwrap_err().contains("not a tensor"));
    }
}
