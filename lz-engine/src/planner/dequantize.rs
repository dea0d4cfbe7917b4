//! Computes the call of a quantized operation by the operation with the same mathematics on dequantized inputs, as the schema relates them
//! (`dequantizes`).

use lz_schema::DType;
use lz_schema::expr::{Program, Value};
use lz_schema::model::{DequantizeArgument, DequantizedInput, Operation, ParamType};

use crate::dynamic::{self, Output};
use crate::engine::Engine;
use crate::registry::Registry;
use lz_core::args::Arg;
use lz_core::check::{self, Bound, OutputSpec};
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::tensor::Tensor;

/// The operation that dequantizes.
const DEQUANTIZE: &str = "dequantize";

/// The operations that compute a quantized call.
pub(super) struct Dequantization {
    /// The operation on dequantized inputs.
    pub dense: &'static OperationInfo,
    dequantize: &'static OperationInfo,
    /// The quantized operation.
    quantized: &'static OperationInfo,
}

impl Dequantization {
    /// `None` if the schema relates the operation to no other, if the relation excludes this call, or if an operation is not registered.
    pub fn of(
        registry: &Registry,
        quantized: &'static OperationInfo,
        bound: &Bound,
    ) -> Option<Dequantization> {
        let relation = quantized.schema().dequantizes.as_ref()?;
        if let Some(when) = &relation.when {
            Program::compile(when).eval_bool(&bound.values).ok().filter(|holds| *holds)?;
        }
        let dense = registry.operation(&relation.operation)?;
        Some(Dequantization { dense, dequantize: registry.operation(DEQUANTIZE)?, quantized })
    }

    /// The names of the inputs that are dequantized.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let relation = self.quantized.schema().dequantizes.as_ref();
        relation.into_iter().flat_map(|relation| &relation.inputs).map(|input| input.name.as_str())
    }

    /// Tensors of the shapes and dtypes of the dequantized inputs, for planning.
    pub fn placeholders(&self, args: &[Arg<'_>], bound: &Bound) -> Option<Vec<Tensor>> {
        self.each(args, bound, |args| {
            let schema = self.dequantize.schema();
            let bound = check::check_planned_call(schema, args, None).ok()?;
            match check::infer_outputs(schema, &bound).ok()?.first()? {
                OutputSpec::Tensor(sizes, dtype) => Tensor::zeros(sizes, *dtype).ok(),
                _ => None,
            }
        })
    }

    /// The dequantized inputs. `None` if one of the calls is not possible.
    pub fn run(&self, engine: &Engine, args: &[Arg<'_>], bound: &Bound) -> Option<Vec<Tensor>> {
        self.each(args, bound, |args| {
            let outputs: Result<Vec<Output>, Error> = dynamic::call(engine, self.dequantize, args);
            match outputs.ok()?.into_iter().next()? {
                Output::Tensor(tensor) => Some(tensor),
                _ => None,
            }
        })
    }

    fn each(
        &self,
        args: &[Arg<'_>],
        bound: &Bound,
        make: impl Fn(&mut [Arg<'_>]) -> Option<Tensor>,
    ) -> Option<Vec<Tensor>> {
        let relation = self.quantized.schema().dequantizes.as_ref()?;
        let inputs = relation.inputs.iter();
        inputs.map(|input| make(&mut self.arguments(input, args, bound)?)).collect()
    }

    /// The arguments of `dequantize` for one input.
    fn arguments<'a>(
        &self,
        input: &DequantizedInput,
        args: &'a [Arg<'_>],
        bound: &Bound,
    ) -> Option<Vec<Arg<'a>>> {
        let (from, to) = (self.quantized.schema(), self.dequantize.schema());
        let stated = |name: &str| {
            input.arguments.iter().find(|(known, _)| known == name).map(|(_, argument)| argument)
        };
        let mut made = Vec::with_capacity(to.inputs.len() + to.params.len());
        for own in &to.inputs {
            made.push(match stated(&own.name) {
                Some(DequantizeArgument::Input(index)) => borrowed(args.get(*index)?),
                _ => Arg::Absent,
            });
        }
        for own in &to.params {
            made.push(match stated(&own.name) {
                Some(argument) => Arg::Value(value(argument, from, bound, &own.ty)?),
                None => Arg::Absent,
            });
        }
        Some(made)
    }

    /// The arguments of the operation on dequantized inputs, which `tensors` are.
    pub fn dense_arguments<'a>(
        &self,
        args: &'a [Arg<'_>],
        bound: &Bound,
        tensors: &'a [Tensor],
    ) -> Option<Vec<Arg<'a>>> {
        let (from, to) = (self.quantized.schema(), self.dense.schema());
        let mut made = Vec::with_capacity(to.inputs.len() + to.params.len());
        for own in &to.inputs {
            let dequantized = self.names().zip(tensors).find(|(name, _)| *name == own.name);
            let index = from.inputs.iter().position(|input| input.name == own.name);
            made.push(match (dequantized, index) {
                (Some((_, tensor)), _) => Arg::Tensor(tensor.view()),
                (None, Some(index)) => borrowed(args.get(index)?),
                (None, None) => Arg::Absent,
            });
        }
        for own in &to.params {
            made.push(match from.params.iter().position(|param| param.name == own.name) {
                Some(index) => Arg::Value(value(&DequantizeArgument::Param(index), from, bound, &own.ty)?),
                None => Arg::Absent,
            });
        }
        Some(made)
    }
}

/// An argument that is only read.
fn borrowed<'a>(arg: &'a Arg<'_>) -> Arg<'a> {
    arg.tensor().map_or(Arg::Absent, Arg::Tensor)
}

/// The value of an argument for a param of this type; `None` if the param has no such value.
fn value(argument: &DequantizeArgument, from: &Operation, bound: &Bound, ty: &ParamType) -> Option<Value> {
    let case = |name: &str| match ty {
        ParamType::Enum(cases) => {
            cases.iter().position(|case| case == name).map(|index| Value::Enum(index as u32))
        }
        _ => None,
    };
    match argument {
        DequantizeArgument::Input(_) => None,
        DequantizeArgument::Axis(index) => bound.axes.get(*index).copied().flatten().map(Value::Int),
        DequantizeArgument::Type(index) => {
            bound.types.get(*index).copied().flatten().map(DType::name).and_then(case)
        }
        DequantizeArgument::Case(name) => case(name),
        DequantizeArgument::Param(index) => {
            let value = *bound.values.get(from.axes.len() + index)?;
            match (value, &from.params.get(*index)?.ty) {
                (Value::Enum(own), ParamType::Enum(cases)) => case(cases.get(own as usize)?),
                _ => Some(value),
            }
        }
    }
}
