//! LayerZero's operations on tensors of candle.
//!
//! An [`Operation`] is a `CustomOp1`, `CustomOp2` or `CustomOp3` of candle, by the number of its tensors; [`Operation::call`] takes
//! any number, absent optional ones, and operations with several results. Tensors are read in place, with any strides.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use lz_candle_example::Operation;
//!
//! let engine = layerzero::Engine::new();
//! let norm = Operation::new(&engine, "norm.rms")?.float("eps", 1e-5)?;
//! let x = Tensor::new(&[[3f32, 4.0], [0.0, 0.0]], &Device::Cpu)?;
//! let weight = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
//! let y = x.apply_op2_no_bwd(&weight, &norm)?;
//! assert_eq!(y.dims(), [2, 2]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! What an operation cannot express is an error: tensors on a GPU, element types that LayerZero does not have, unknown params, and
//! operations that write their inputs, because tensors of candle do not change.

mod convert;

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Storage, Tensor,
};
use layerzero::Engine;
use layerzero::core::OperationInfo;
use layerzero::core::args::Arg;
use layerzero::core::expr::Value;
use layerzero::engine::dynamic::{self, Output};

/// An operation with its params.
#[derive(Debug, Clone)]
pub struct Operation {
    engine: Engine,
    info: &'static OperationInfo,
    params: Vec<Option<Value>>,
}

impl Operation {
    /// An operation by its name (`norm.rms`), with the defaults of its params.
    pub fn new(engine: &Engine, name: &str) -> Result<Operation> {
        let info = layerzero::ops::OPERATIONS.iter().copied().find(|info| info.name == name);
        let info = info.ok_or_else(|| Error::msg(format!("unknown operation `{name}`")))?;
        let schema = info.schema();
        if let Some(input) = schema.inputs.iter().find(|input| input.read_write) {
            return Err(Error::msg(format!(
                "{name} writes its input `{}` in place, and tensors of candle do not change",
                input.name
            )));
        }
        Ok(Operation { engine: engine.clone(), info, params: vec![None; schema.params.len()] })
    }

    /// Sets an int param.
    pub fn int(self, name: &str, value: i64) -> Result<Operation> {
        self.with(name, |_| Some(Value::Int(value)))
    }

    /// Sets a float param.
    pub fn float(self, name: &str, value: f64) -> Result<Operation> {
        self.with(name, |_| Some(Value::Float(value)))
    }

    /// Sets a bool param.
    pub fn flag(self, name: &str, value: bool) -> Result<Operation> {
        self.with(name, |_| Some(Value::Bool(value)))
    }

    /// Sets an enum param to a case.
    pub fn case(self, name: &str, case: &str) -> Result<Operation> {
        self.with(name, |cases| cases.iter().position(|one| one == case).map(|at| Value::Enum(at as u32)))
    }

    fn with(mut self, name: &str, value: impl FnOnce(&[String]) -> Option<Value>) -> Result<Operation> {
        let params = &self.info.schema().params;
        let names = || params.iter().map(|param| param.name.as_str()).collect::<Vec<_>>().join(", ");
        let at = params.iter().position(|param| param.name == name);
        let at = at.ok_or_else(|| {
            Error::msg(format!("{} has no param `{name}`, only {}", self.info.name, names()))
        })?;
        let cases = convert::cases(&params[at].ty);
        let value = value(cases)
            .ok_or_else(|| Error::msg(format!("`{name}` must be one of {}", cases.join(", "))))?;
        self.params[at] = Some(value);
        Ok(self)
    }

    /// Calls the operation. Inputs have the order of the operation's page; absent optional ones are `None` or left out at the end.
    pub fn call(&self, inputs: &[Option<&Tensor>]) -> Result<Vec<Tensor>> {
        let locked: Vec<_> = inputs.iter().map(|input| input.map(Tensor::storage_and_layout)).collect();
        let mut storages = Vec::with_capacity(locked.len());
        for input in &locked {
            storages.push(match input {
                None => None,
                Some((storage, layout)) => match &**storage {
                    Storage::Cpu(storage) => Some((storage, *layout)),
                    _ => return Err(Error::msg(format!("{} reads tensors on the CPU only", self.info.name))),
                },
            });
        }
        let results = self.run(&storages)?;
        let made = results.into_iter().map(|(storage, shape)| {
            Tensor::from_storage(Storage::Cpu(storage), shape, candle_core::op::BackpropOp::none(), false)
        });
        Ok(made.collect())
    }

    fn run(&self, inputs: &[Option<(&CpuStorage, &Layout)>]) -> Result<Vec<(CpuStorage, Shape)>> {
        let schema = self.info.schema();
        if inputs.len() > schema.inputs.len() {
            let (given, known) = (inputs.len(), schema.inputs.len());
            return Err(Error::msg(format!(
                "{} has {known} inputs, and {given} tensors are given",
                self.info.name
            )));
        }
        let mut args: Vec<Arg<'_>> = Vec::with_capacity(schema.inputs.len() + schema.params.len());
        for at in 0..schema.inputs.len() {
            args.push(match inputs.get(at).copied().flatten() {
                Some((storage, layout)) => Arg::Tensor(convert::view(storage, layout)?),
                None => Arg::Absent,
            });
        }
        args.extend(self.params.iter().map(|param| param.map_or(Arg::Absent, Arg::Value)));
        let outputs = dynamic::call(&self.engine, self.info, &mut args).map_err(Error::msg)?;
        let mut results = Vec::new();
        for output in outputs {
            match output {
                Output::Absent => {}
                Output::Tensor(tensor) => results.push(convert::storage(&tensor)?),
                Output::Text(_) => return Err(Error::msg("candle has no tensors of strings")),
            }
        }
        Ok(results)
    }

    /// The only result, as custom operations of candle have.
    fn run_one(&self, inputs: &[Option<(&CpuStorage, &Layout)>]) -> Result<(CpuStorage, Shape)> {
        let mut results = self.run(inputs)?;
        match (results.pop(), results.is_empty()) {
            (Some(result), true) => Ok(result),
            _ => Err(Error::msg(format!("{} has several results; use `Operation::call`", self.info.name))),
        }
    }
}

impl CustomOp1 for Operation {
    fn name(&self) -> &'static str {
        &self.info.name
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        self.run_one(&[Some((storage, layout))])
    }
}

impl CustomOp2 for Operation {
    fn name(&self) -> &'static str {
        &self.info.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.run_one(&[Some((s1, l1)), Some((s2, l2))])
    }
}

impl CustomOp3 for Operation {
    fn name(&self) -> &'static str {
        &self.info.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.run_one(&[Some((s1, l1)), Some((s2, l2)), Some((s3, l3))])
    }
}
