//! Compiled models for C++.

use std::path::Path;
use std::sync::Arc;

use lz_core::{Error, Reason, ReasonCode, TensorMut, TensorView};
use lz_graph::compiled::MissingKernels;
use lz_graph::quantize::{self, Format};
use lz_graph::sizes::InputShape;
use lz_graph::validate::Validation;
use lz_graph::{CompiledModel, GraphError, LoadOptions, Options, RunInput};
use lz_plugin::abi::{self, Output};

use crate::call::{Failure, guarded};
use crate::data;
use crate::engine::Engine;
use crate::output::hand_over_tensor;

/// A compiled model; empty until one is compiled or loaded.
#[derive(Debug, Default)]
pub struct ModelHandle {
    model: Option<Arc<CompiledModel>>,
}

impl ModelHandle {
    fn get(&self) -> Result<&CompiledModel, Error> {
        self.model.as_deref().ok_or_else(|| invalid("no model was compiled"))
    }

    fn set(&mut self, made: Result<CompiledModel, GraphError>) -> Result<(), Error> {
        self.model = Some(Arc::new(made?));
        Ok(())
    }
}

fn invalid(message: &str) -> Error {
    let reason = Reason::new(ReasonCode::ArgumentKind).message(message);
    Error::Validation { operation: "graph".to_owned(), reasons: vec![reason] }
}

/// An empty handle.
pub fn model_new() -> Box<ModelHandle> {
    Box::default()
}

/// Returns another handle of the same model.
pub fn model_share(handle: &ModelHandle) -> Box<ModelHandle> {
    Box::new(ModelHandle { model: handle.model.clone() })
}

fn options(given: &data::ModelOptions<'_>) -> Result<Options, Error> {
    let Some(validation) = Validation::from_name(given.validation) else {
        return Err(invalid("unknown validation; expected none, normal or strict"));
    };
    let quantization = quantization(given)?;
    Ok(Options { optimize: given.optimize, validation, quantization, ..Options::default() })
}

fn quantization(given: &data::ModelOptions<'_>) -> Result<Option<quantize::Options>, Error> {
    if given.weights.is_empty() {
        if given.group >= 0 || given.int8_activations {
            return Err(invalid("group and int8_activations need weights int8 or int4"));
        }
        return Ok(None);
    }
    let Some(format) = Format::from_name(given.weights) else {
        return Err(invalid("unknown format of weights; expected int8 or int4"));
    };
    let group = if given.group < 0 { format.default_group() } else { given.group };
    let (activations, tied) = (given.int8_activations, given.quantize_tied);
    Ok(Some(quantize::Options { format, group, activations, tied, panels: true }))
}

/// Compiles an ONNX file.
pub fn model_compile(
    handle: &mut ModelHandle,
    engine: &Engine,
    path: &str,
    given: &data::ModelOptions<'_>,
) -> *mut Failure {
    guarded(|| {
        let options = options(given)?;
        handle.set(CompiledModel::from_onnx(&engine.inner, Path::new(path), &options))
    })
}

/// Compiles an ONNX model in memory.
pub fn model_compile_bytes(
    handle: &mut ModelHandle,
    engine: &Engine,
    bytes: &[u8],
    given: &data::ModelOptions<'_>,
) -> *mut Failure {
    guarded(|| {
        let options = options(given)?;
        handle.set(CompiledModel::from_onnx_bytes(&engine.inner, bytes, &options))
    })
}

/// Linear layers of a model with quantized weights, one text each: bytes before and after, and the error of the weights.
pub fn model_quantized_layers(handle: &ModelHandle) -> Vec<String> {
    let layers = handle.model.iter().flat_map(|model| model.quantized_layers());
    layers.map(ToString::to_string).collect()
}

/// Loads a saved model.
pub fn model_load(
    handle: &mut ModelHandle,
    engine: &Engine,
    path: &str,
    verify: bool,
    refuse_missing_kernels: bool,
) -> *mut Failure {
    guarded(|| {
        let missing_kernels =
            if refuse_missing_kernels { MissingKernels::Refuse } else { MissingKernels::Replan };
        let options = LoadOptions { verify, missing_kernels, ..LoadOptions::default() };
        handle.set(CompiledModel::load(&engine.inner, Path::new(path), &options))
    })
}

/// Saves a model.
pub fn model_save(handle: &ModelHandle, path: &str) -> *mut Failure {
    guarded(|| Ok(handle.get()?.save(Path::new(path))?))
}

/// The names of the inputs.
pub fn model_inputs(handle: &ModelHandle) -> Vec<String> {
    let inputs = handle.model.iter().flat_map(|model| &model.graph().inputs);
    inputs.map(|input| input.name.clone()).collect()
}

/// The names of the outputs.
pub fn model_outputs(handle: &ModelHandle) -> Vec<String> {
    let outputs = handle.model.iter().flat_map(|model| &model.graph().outputs);
    outputs.map(|output| output.name.clone()).collect()
}

/// The graph, one line per node.
pub fn model_graph(handle: &ModelHandle) -> String {
    handle.model.as_ref().map(|model| model.graph().to_string()).unwrap_or_default()
}

/// What validators found, one text each.
pub fn model_findings(handle: &ModelHandle) -> Vec<String> {
    let findings = handle.model.iter().flat_map(|model| model.findings());
    findings.map(ToString::to_string).collect()
}

/// The decisions of all plans so far as the text of a lockfile.
pub fn model_freeze(handle: &ModelHandle, text: &mut String) -> *mut Failure {
    guarded(|| {
        *text = handle.get()?.freeze()?.text();
        Ok(())
    })
}

/// Explains the model for inputs like these.
///
/// # Safety
/// As for [`model_run`].
pub unsafe fn model_explain(handle: &ModelHandle, inputs: &[usize], text: &mut String) -> *mut Failure {
    guarded(|| {
        let model = handle.get()?;
        let mut shapes = Vec::with_capacity(inputs.len());
        for (index, address) in inputs.iter().enumerate() {
            let mut tensor = TensorMut::empty();
            // SAFETY: the caller's contract is the same.
            unsafe { describe(model, index, *address, &mut tensor) }?;
            shapes.push(InputShape { shape: tensor.shape().to_vec(), dtype: tensor.dtype() });
        }
        *text = model.explain(&shapes)?;
        Ok(())
    })
}

/// Describes the `lz_tensor` at an address.
///
/// # Safety
/// As for [`model_run`].
unsafe fn describe(
    model: &CompiledModel,
    index: usize,
    address: usize,
    tensor: &mut TensorMut<'_>,
) -> Result<(), Error> {
    let name = model.graph().inputs.get(index).map_or("", |input| input.name.as_str());
    // SAFETY: the caller's contract is the same.
    let described = unsafe { abi::tensor_mut(name, address as *const abi::Tensor, tensor) };
    described.map_err(|reason| Error::Validation { operation: "graph".to_owned(), reasons: vec![reason] })
}

/// Runs the model; the outputs own their memory.
///
/// # Safety
/// `inputs` are addresses of `lz_tensor` structures that describe valid memory during the call; where `writable` is set, nothing else
/// accesses the memory meanwhile. `outputs` has one slot per output of the model.
pub unsafe fn model_run(
    handle: &ModelHandle,
    inputs: &[usize],
    writable: &[u8],
    outputs: *mut Output,
) -> *mut Failure {
    guarded(|| {
        let model = handle.get()?;
        let mut run_inputs = Vec::with_capacity(inputs.len());
        for (index, address) in inputs.iter().enumerate() {
            let mut tensor = TensorMut::empty();
            // SAFETY: the caller's contract is the same.
            unsafe { describe(model, index, *address, &mut tensor) }?;
            let is_writable = writable.get(index).is_some_and(|flag| *flag != 0);
            run_inputs.push(match is_writable {
                true => RunInput::Write(tensor),
                // SAFETY: the memory is valid during the call.
                false => RunInput::Read(unsafe {
                    TensorView::from_raw(tensor.as_view().as_ptr(), *tensor.layout())
                }),
            });
        }
        for (index, tensor) in model.run(run_inputs)?.into_iter().enumerate() {
            // SAFETY: the caller guarantees one slot per output.
            hand_over_tensor(unsafe { &mut *outputs.add(index) }, tensor);
        }
        Ok(())
    })
}
