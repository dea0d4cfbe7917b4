//! Which operations can be expressed in ONNX, and how.
//!
//! An operation is one op type, named as in Python (`norm_rms`). Inputs and outputs have the order of the schema; params are
//! attributes. ONNX Runtime derives the types of outputs from those of inputs alone. So there is one custom operation for each
//! choice of the dtype variables that occur in outputs; and if dtypes depend on an enum param, one op type for each case, with the
//! case in its name (`mlp_linear_int8_bf16`) and without that attribute. Values of ONNX do not change: an input that an operation
//! writes in place is copied, and the written copy is one more output (`residual_out`).

use std::ffi::c_int;

use lz_core::{DType, OperationInfo};
use lz_schema::model::{Cases, DTypeRef, Input, Kind, Operation, ParamType};
use serde_json::{Map, Value, json};

use crate::api;

/// One custom operation: an op type with the types of its outputs.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// Its name in ONNX models.
    pub op_type: String,
    /// Enum params that the name fixes, with their cases.
    pub fixed: Vec<(usize, u32)>,
    /// The element type of each input by its number in ONNX; `None` if any type is passed on to validation.
    pub inputs: Vec<Option<c_int>>,
    /// The element type of each output: those of the schema, then those of written inputs.
    pub outputs: Vec<DType>,
}

/// An operation that ONNX Runtime cannot run, and the reason.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// Why not.
    pub reason: String,
}

/// All custom operations, and the operations that have none.
pub fn all() -> (Vec<Variant>, Vec<Refusal>) {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for operation in lz_ops::OPERATIONS.iter().copied() {
        match variants(operation) {
            Ok(variants) => found.extend(variants),
            Err(reason) => refused.push(Refusal { operation, reason }),
        }
    }
    (found, refused)
}

/// The custom operations of one operation, or the reason why there are none.
pub fn variants(operation: &'static OperationInfo) -> Result<Vec<Variant>, String> {
    let schema = operation.schema();
    for input in &schema.inputs {
        if input.kind != Kind::Tensor {
            return Err(format!("input `{}` is not a tensor", input.name));
        }
    }
    if let Some(output) = schema.outputs.iter().find(|output| output.kind != Kind::Tensor) {
        return Err(format!("output `{}` is not a tensor", output.name));
    }
    let mut variants = Vec::new();
    for fixed in choices(&case_params(schema)) {
        let written = written(schema).map(|(_, input)| &input.dtype);
        let dtypes = schema.outputs.iter().map(|output| &output.dtype).chain(written);
        let outputs: Vec<DTypeRef> = dtypes.map(|dtype| resolve(dtype, &fixed)).collect();
        for types in choices(&output_variables(schema, &outputs)) {
            variants.extend(variant(operation, &fixed, &outputs, &types));
        }
    }
    if variants.is_empty() {
        return Err("ONNX has none of its element types".to_owned());
    }
    Ok(variants)
}

/// The inputs that are written in place, with their positions.
pub fn written(schema: &Operation) -> impl Iterator<Item = (usize, &Input)> {
    schema.inputs.iter().enumerate().filter(|(_, input)| input.read_write)
}

/// The enum params on which dtypes depend, each with its number of cases.
fn case_params(schema: &Operation) -> Vec<(usize, u32)> {
    let dtypes = schema.inputs.iter().map(|input| &input.dtype);
    let mut params: Vec<(usize, u32)> = dtypes
        .chain(schema.outputs.iter().map(|output| &output.dtype))
        .filter_map(|dtype| match dtype {
            Cases::One(_) => None,
            Cases::By(param, cases) => Some((*param, cases.len() as u32)),
        })
        .collect();
    params.sort_unstable();
    params.dedup();
    params
}

/// The dtype variables of the outputs, each with its number of dtypes.
fn output_variables(schema: &Operation, outputs: &[DTypeRef]) -> Vec<(usize, u32)> {
    let mut variables: Vec<(usize, u32)> = outputs
        .iter()
        .filter_map(|dtype| match dtype {
            DTypeRef::Fixed(_) => None,
            DTypeRef::Variable(variable) => Some((*variable, schema.types[*variable].dtypes.len() as u32)),
        })
        .collect();
    variables.sort_unstable();
    variables.dedup();
    variables
}

/// Every choice of one of `count` alternatives for each index.
fn choices(of: &[(usize, u32)]) -> Vec<Vec<(usize, u32)>> {
    of.iter().fold(vec![Vec::new()], |chosen, &(index, count)| {
        let extended = chosen.iter().flat_map(|so_far| {
            (0..count).map(move |one| so_far.iter().copied().chain([(index, one)]).collect::<Vec<_>>())
        });
        extended.collect()
    })
}

fn resolve(dtype: &Cases<DTypeRef>, fixed: &[(usize, u32)]) -> DTypeRef {
    match dtype {
        Cases::One(only) => *only,
        Cases::By(param, cases) => {
            let case = fixed.iter().find(|(one, _)| one == param).map_or(0, |(_, case)| *case as usize);
            cases[case]
        }
    }
}

/// One custom operation; `None` if ONNX does not have one of the element types.
fn variant(
    operation: &'static OperationInfo,
    fixed: &[(usize, u32)],
    outputs: &[DTypeRef],
    types: &[(usize, u32)],
) -> Option<Variant> {
    let schema = operation.schema();
    let chosen = |dtype: DTypeRef| match dtype {
        DTypeRef::Fixed(dtype) => Some(dtype),
        DTypeRef::Variable(variable) => {
            let (_, one) = types.iter().find(|(of, _)| *of == variable)?;
            schema.types[variable].dtypes.get(*one as usize).copied()
        }
    };
    let mut inputs = Vec::with_capacity(schema.inputs.len());
    for input in &schema.inputs {
        inputs.push(match chosen(resolve(&input.dtype, fixed)) {
            Some(dtype) => Some(api::element_type(dtype)?),
            None => None,
        });
    }
    let outputs: Option<Vec<DType>> =
        outputs.iter().map(|dtype| chosen(*dtype).filter(|one| api::element_type(*one).is_some())).collect();
    let mut op_type = schema.flat_name();
    for &(param, case) in fixed {
        op_type = format!("{op_type}_{}", cases(&schema.params[param].ty).get(case as usize)?);
    }
    Some(Variant { operation, op_type, fixed: fixed.to_vec(), inputs, outputs: outputs? })
}

/// The cases of an enum param.
pub fn cases(ty: &ParamType) -> &[String] {
    match ty {
        ParamType::Enum(cases) => cases,
        _ => &[],
    }
}

/// The op types and the refused operations as JSON, for checks of models and documentation.
pub fn describe() -> Value {
    let (variants, refused) = all();
    let mut op_types = Map::new();
    for variant in variants {
        let schema = variant.operation.schema();
        let inputs: Vec<Value> = schema
            .inputs
            .iter()
            .map(|input| json!({"name": input.name, "optional": input.optional.is_some()}))
            .collect();
        let own = schema
            .outputs
            .iter()
            .map(|output| json!({"name": output.name, "optional": output.when.is_some()}));
        let written = written(schema)
            .map(|(_, input)| json!({"name": format!("{}_out", input.name), "optional": true}));
        let outputs: Vec<Value> = own.chain(written).collect();
        let attributes: Map<String, Value> = schema
            .params
            .iter()
            .enumerate()
            .filter(|(param, _)| !variant.fixed.iter().any(|(fixed, _)| fixed == param))
            .map(|(_, param)| (param.name.clone(), attribute(&param.ty, param.default.is_some())))
            .collect();
        op_types.insert(
            variant.op_type,
            json!({"operation": schema.name, "inputs": inputs, "outputs": outputs, "attributes": attributes}),
        );
    }
    let refused: Map<String, Value> =
        refused.into_iter().map(|one| (one.operation.name.to_string(), Value::String(one.reason))).collect();
    json!({"op_types": op_types, "refused": refused})
}

fn attribute(ty: &ParamType, has_default: bool) -> Value {
    let kind = match ty {
        ParamType::Int => "int",
        ParamType::F32 | ParamType::F64 => "float",
        ParamType::Bool => "bool",
        ParamType::Enum(_) => "string",
    };
    json!({"type": kind, "cases": cases(ty), "required": !has_default})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types_of(op_type: &str) -> Vec<(Vec<Option<c_int>>, Vec<DType>)> {
        let (variants, _) = all();
        let of_type = variants.into_iter().filter(|variant| variant.op_type == op_type);
        of_type.map(|variant| (variant.inputs, variant.outputs)).collect()
    }

    #[test]
    fn one_custom_operation_for_each_type_of_the_output() {
        let types = types_of("activation_silu");
        assert_eq!(
            types,
            [
                (vec![Some(1)], vec![DType::F32]),
                (vec![Some(10)], vec![DType::F16]),
                (vec![Some(16)], vec![DType::BF16])
            ]
        );
    }

    #[test]
    fn cases_of_a_param_that_selects_dtypes_are_op_types() {
        assert!(types_of("mlp_linear_int8").is_empty());
        for (case, dtype) in [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16)] {
            let types = types_of(&format!("mlp_linear_int8_{case}"));
            assert_eq!(types.len(), 1, "{types:?}");
            assert_eq!(types[0].1, [dtype]);
        }
        // ONNX has no pairs of 4-bit floats.
        assert!(types_of("quantize_mxfp4").is_empty() && !types_of("quantize_int8").is_empty());
    }

    #[test]
    fn operations_that_onnx_cannot_express_are_refused_with_a_reason() {
        let (variants, refused) = all();
        for (operation, reason) in
            [("tokenize.encode", "`texts` is not a tensor"), ("tokenize.decode", "not a tensor")]
        {
            let found = refused.iter().find(|one| one.operation.name == operation);
            assert!(found.is_some_and(|one| one.reason.contains(reason)), "{operation}: {found:?}");
        }
        // Every operation is in exactly one of the two lists.
        for operation in lz_ops::OPERATIONS {
            let runs = variants.iter().any(|variant| variant.operation.name == operation.name);
            let is_refused = refused.iter().any(|one| one.operation.name == operation.name);
            assert!(runs != is_refused, "{}", operation.name);
        }
    }

    #[test]
    fn written_inputs_are_outputs() {
        let types = types_of("norm_rms_add");
        assert_eq!(types[0].1, [DType::F32, DType::F32]);
        let described = describe();
        let outputs = &described["op_types"]["norm_rms_add"]["outputs"];
        assert_eq!(outputs[1], json!({"name": "residual_out", "optional": true}));
    }

    #[test]
    fn op_types_are_unique_per_choice_of_types() {
        let (variants, _) = all();
        for (at, one) in variants.iter().enumerate() {
            for other in &variants[at + 1..] {
                let same = one.op_type == other.op_type && one.inputs == other.inputs;
                assert!(!same, "{} has two custom operations for {:?}", one.op_type, one.inputs);
            }
        }
    }
}
