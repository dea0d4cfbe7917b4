//! Runs a node: inputs and outputs are views of ONNX Runtime's tensors, without copies.

use lz_core::check::{self, OutputSpec};
use lz_core::expr::Value;
use lz_core::tensor::Layout;
use lz_core::{Arg, DType, Error, OutArg, Tensor, TensorMut, TensorView};
use lz_engine::{Engine, dynamic};

use crate::api::{self, Api, KernelContext, TensorValue};
use crate::catalog::{self, Variant};

/// A node of a session.
pub struct Node {
    /// The functions of ONNX Runtime.
    pub api: Api,
    /// The engine.
    pub engine: Engine,
    /// The operation.
    pub variant: &'static Variant,
    /// The params; `None` is the default of the schema.
    pub params: Vec<Option<Value>>,
}

/// The memory of an output.
enum Output {
    /// The call does not produce it.
    Absent,
    /// A tensor of ONNX Runtime.
    Given(TensorValue, Layout),
    /// The node leaves it out, and kernels write it nevertheless.
    Unused(Tensor),
    /// The kernel determines the size.
    Dynamic(Option<Tensor>),
}

impl Node {
    /// Runs the node.
    pub fn compute(&self, context: *mut KernelContext) -> Result<(), String> {
        let operation = self.variant.operation;
        let schema = operation.schema();
        let (n_inputs, n_outputs) = self.api.counts(context)?;
        let mut views = Vec::with_capacity(schema.inputs.len());
        for (index, input) in schema.inputs.iter().enumerate() {
            let value = if index < n_inputs { self.api.input(context, index)? } else { None };
            let view =
                value.as_ref().map(view).transpose().map_err(|problem| self.about(&input.name, &problem))?;
            views.push(view);
        }
        let mut written = Vec::new();
        for (number, (index, input)) in catalog::written(schema).enumerate() {
            let output = schema.outputs.len() + number;
            let copied = self.written(context, output, output < n_outputs, views[index].as_ref());
            written.push(copied.map_err(|problem| self.about(&input.name, &problem))?);
        }
        let mut copies = written.iter_mut();
        let mut args: Vec<Arg<'_>> = Vec::with_capacity(schema.inputs.len() + self.params.len());
        for (input, view) in schema.inputs.iter().zip(&views) {
            let copy = if input.read_write { copies.next().map(Output::argument) } else { None };
            args.push(match (copy, view) {
                (Some(OutArg::Tensor(tensor)), _) => Arg::TensorMut(tensor),
                (_, Some(view)) if !input.read_write => Arg::Tensor(*view),
                _ => Arg::Absent,
            });
        }
        args.extend(self.params.iter().map(|param| param.map_or(Arg::Absent, Arg::Value)));
        let bound = check::check_call(schema, &args, None).map_err(|error| error.to_string())?;
        let specs = check::infer_outputs(schema, &bound).map_err(|reason| reason.to_string())?;
        let mut outputs = Vec::with_capacity(specs.len());
        for (index, (spec, output)) in specs.iter().zip(&schema.outputs).enumerate() {
            let named = index < n_outputs;
            outputs.push(
                self.output(context, index, named, spec)
                    .map_err(|problem| self.about(&output.name, &problem))?,
            );
        }
        let mut out_args: Vec<OutArg<'_>> = outputs.iter_mut().map(Output::argument).collect();
        dynamic::call_into(&self.engine, operation, &mut args, &mut out_args)
            .map_err(|error: Error| error.to_string())?;
        drop(out_args);
        for (index, output) in outputs.iter().enumerate() {
            if let Output::Dynamic(tensor) = output {
                let name = &schema.outputs[index].name;
                let tensor =
                    tensor.as_ref().ok_or_else(|| self.about(name, "the kernel did not produce it"))?;
                self.copy(context, index, tensor).map_err(|problem| self.about(name, &problem))?;
            }
        }
        Ok(())
    }

    /// The copy of an input that the operation writes.
    fn written(
        &self,
        context: *mut KernelContext,
        index: usize,
        named: bool,
        view: Option<&TensorView<'_>>,
    ) -> Result<Output, String> {
        let Some(view) = view else { return self.output(context, index, named, &OutputSpec::Absent) };
        let spec = OutputSpec::Tensor(view.layout().shape, view.dtype());
        let mut output = self.output(context, index, named, &spec)?;
        let bytes = view.elements() as usize * view.dtype().size();
        if let (OutArg::Tensor(mut tensor), true) = (output.argument(), bytes > 0) {
            // SAFETY: both tensors are dense and have the same shape and type; the output was just allocated.
            unsafe { std::ptr::copy_nonoverlapping(view.as_ptr(), tensor.as_mut_ptr(), bytes) };
        }
        Ok(output)
    }

    fn about(&self, name: &str, problem: &str) -> String {
        format!("{}: `{name}`: {problem}", self.variant.op_type)
    }

    /// The memory of an output. `named` is false if it is one of the trailing outputs that the node leaves out.
    fn output(
        &self,
        context: *mut KernelContext,
        index: usize,
        named: bool,
        spec: &OutputSpec,
    ) -> Result<Output, String> {
        let declared = self.variant.outputs.get(index).copied();
        match spec {
            OutputSpec::Absent => {
                // The size does not matter: only a node that does not name the output gets none.
                if named && self.api.output(context, index, &[0])?.is_some() {
                    return Err("this call does not produce the output: set the attribute that requests it"
                        .to_owned());
                }
                Ok(Output::Absent)
            }
            OutputSpec::Tensor(sizes, dtype) => {
                self.declared(declared, *dtype)?;
                let value = if named { self.api.output(context, index, sizes)? } else { None };
                let layout = Layout::contiguous(sizes, *dtype).map_err(|reason| reason.to_string())?;
                match value {
                    Some(value) => {
                        self.declared(api::dtype(value.element_type), *dtype)?;
                        Ok(Output::Given(value, layout))
                    }
                    None => {
                        Tensor::zeros(sizes, *dtype).map(Output::Unused).map_err(|reason| reason.to_string())
                    }
                }
            }
            OutputSpec::Dynamic(dtype) => self.declared(declared, *dtype).map(|()| Output::Dynamic(None)),
            OutputSpec::Text => Err("strings are not supported".to_owned()),
        }
    }

    fn declared(&self, declared: Option<DType>, dtype: DType) -> Result<(), String> {
        if declared == Some(dtype) {
            return Ok(());
        }
        let name = declared.map_or("another type", DType::name);
        Err(format!("the call produces {}, and ONNX Runtime expects {name}", dtype.name()))
    }

    /// Copies a result whose size only the kernel knew.
    fn copy(&self, context: *mut KernelContext, index: usize, tensor: &Tensor) -> Result<(), String> {
        let Some(value) = self.api.output(context, index, tensor.shape())? else { return Ok(()) };
        let bytes = tensor.bytes();
        if !bytes.is_empty() {
            // SAFETY: ONNX Runtime allocated a tensor of this shape and type, which `declared` checked; it is not read by others.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.data, bytes.len()) };
        }
        Ok(())
    }
}

impl Output {
    fn argument(&mut self) -> OutArg<'_> {
        match self {
            Output::Absent => OutArg::Absent,
            Output::Given(value, layout) => {
                // SAFETY: ONNX Runtime allocated a tensor of this layout, which only this node writes during the run.
                OutArg::Tensor(unsafe { TensorMut::from_raw(address(value), *layout) })
            }
            Output::Unused(tensor) => OutArg::Tensor(tensor.view_mut()),
            Output::Dynamic(slot) => OutArg::Dynamic(slot),
        }
    }
}

/// A view of an input, valid during the run.
fn view<'a>(value: &TensorValue) -> Result<TensorView<'a>, String> {
    let dtype = api::dtype(value.element_type)
        .ok_or_else(|| format!("LayerZero has no element type for number {} of ONNX", value.element_type))?;
    let layout = Layout::contiguous(&value.shape, dtype).map_err(|reason| reason.to_string())?;
    // SAFETY: ONNX Runtime keeps the inputs of a node alive and unchanged while it runs; they are dense.
    Ok(unsafe { TensorView::from_raw(address(value), layout) })
}

/// The address of the first element. A tensor without elements may have none, and gets an aligned one that is never read.
fn address(value: &TensorValue) -> *mut u8 {
    const ALIGNMENT: usize = 64;
    if value.data.is_null() { std::ptr::without_provenance_mut(ALIGNMENT) } else { value.data }
}
