//! Calls that are considered together: blocks of operations, calls in several quantization formats, and the calls of a draft
//! model and its target.

use lz_core::tensor::Dims;
use lz_core::{DType, OperationInfo, Reason, ReasonCode, TensorMut};
use lz_engine::dynamic::Output;
use lz_engine::planner::{BlockCall, BlockPlan};
use lz_engine::quant::{FormatCall, QuantConfig};
use lz_engine::speculative::{ModelCall, SpeculativeConfig};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{BorrowedArgument, as_args, borrow_arguments, match_arguments, texts};
use crate::call::Frame;
use crate::engine::engine;
use crate::error::{raise, raise_kernel, validation_error};
use crate::inspect::{described_call, engine_for, operation};
use crate::output::{OutputSlot, returned};
use crate::selection::Selection;
use crate::simulate::DescribedBackend;

/// A call: an operation and its arguments by name.
type Call<'py> = (String, Bound<'py, PyDict>);

/// A plan as text and as JSON.
type ShownPlan = (String, String);

/// The outputs of the last operation, the kernel of each operation, and the plan.
type BlockResult<'py> = (Bound<'py, PyAny>, Vec<Option<String>>, Option<ShownPlan>);

fn dtypes_of(names: &[String]) -> PyResult<Vec<DType>> {
    let one = |name: &String| {
        DType::parse(name).ok_or_else(|| PyValueError::new_err(format!("unknown dtype `{name}`")))
    };
    names.iter().map(one).collect()
}

fn shown(plan: &BlockPlan) -> PyResult<ShownPlan> {
    let json = serde_json::to_string(plan)
        .map_err(|error| PyValueError::new_err(format!("the plan cannot be written as JSON: {error}")))?;
    Ok((plan.to_string(), json))
}

/// Checks that a block can use the arguments of a call.
fn check_usable(
    frame: &Frame<'_, '_>,
    info: &'static OperationInfo,
    arguments: &[BorrowedArgument<'_>],
) -> PyResult<()> {
    for (input, argument) in info.schema().inputs.iter().zip(arguments) {
        let BorrowedArgument::Tensor(tensor) = argument else { continue };
        if input.read_write && tensor.is_read_only() {
            return Err(frame.refuse_read_only(&input.name));
        }
        let device = tensor.view().device();
        if !device.is_host() {
            let reason = Reason::new(ReasonCode::PlatformMismatch)
                .argument(&input.name)
                .required("host tensors in a block; device= plans for another device")
                .found(device.to_string());
            return Err(validation_error(frame.py, &info.name, reason));
        }
    }
    Ok(())
}

/// Borrows the arguments of all calls and has `act` use them; the frame is that of the first call.
fn with_calls<'py, R>(
    py: Python<'py>,
    calls: &[Call<'py>],
    dtypes: &[DType],
    act: impl FnOnce(&mut Frame<'_, 'py>, &mut [BlockCall<'_>]) -> PyResult<R>,
) -> PyResult<R> {
    let no_arguments = PyTuple::empty(py);
    let mut operations = Vec::with_capacity(calls.len());
    let mut objects = Vec::with_capacity(calls.len());
    for (name, keywords) in calls {
        let info = operation(name)?;
        let (own, out) = match_arguments(py, info, &no_arguments, Some(keywords))?;
        if out.is_some() {
            return Err(PyValueError::new_err("a block allocates its outputs: remove out="));
        }
        operations.push(info);
        objects.push(own);
    }
    let mut frames = Vec::with_capacity(calls.len());
    let mut borrowed = Vec::with_capacity(calls.len());
    for (info, objects) in operations.iter().copied().zip(&objects) {
        let mut frame = Frame::new(py, info, Selection::Select);
        let own = borrow_arguments(&mut frame, objects)?;
        check_usable(&frame, info, &own)?;
        frames.push(frame);
        borrowed.push(own);
    }
    let strings: Vec<Vec<Vec<&str>>> = borrowed.iter().map(|own| texts(own)).collect();
    let mut block: Vec<BlockCall<'_>> = operations
        .iter()
        .copied()
        .zip(borrowed.iter().zip(&strings))
        .map(|(info, (own, strings))| {
            BlockCall::new(info, as_args(info.schema(), own, strings)).or_in(dtypes)
        })
        .collect();
    match frames.first_mut() {
        Some(frame) => act(frame, &mut block),
        None => Err(PyValueError::new_err("a block has at least one call")),
    }
}

/// Plans a block: the kernels of all calls, selected jointly, as text and as JSON.
#[pyfunction]
fn plan_block<'py>(
    py: Python<'py>,
    calls: Vec<Call<'py>>,
    dtypes: Vec<String>,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<ShownPlan> {
    let engine = engine_for(py, device, backends)?;
    let plan = with_calls(py, &calls, &dtypes_of(&dtypes)?, |_, calls| {
        py.detach(|| engine.plan_calls(calls)).map_err(|error| raise(py, &error))
    })?;
    let plan = plan.ok_or_else(|| {
        PyValueError::new_err(
            "the size of a tensor inside this block is known only when it runs, so it has no plan",
        )
    })?;
    shown(&plan)
}

/// Runs a block: each call takes the first output of the previous one as its first tensor.
#[pyfunction]
fn run_block<'py>(py: Python<'py>, calls: Vec<Call<'py>>, dtypes: Vec<String>) -> PyResult<BlockResult<'py>> {
    let engine = engine()?;
    with_calls(py, &calls, &dtypes_of(&dtypes)?, |frame, calls| {
        let run = py.detach(|| engine.run_block(calls)).map_err(|error| raise(py, &error))?;
        let mut outputs = Vec::with_capacity(run.outputs.len());
        for output in run.outputs {
            outputs.extend(object(frame, output)?);
        }
        let plan = run.plan.as_ref().map(shown).transpose()?;
        Ok((returned(py, outputs)?, run.kernels, plan))
    })
}

/// An output as an object of the caller's library.
fn object<'py>(frame: &mut Frame<'_, 'py>, output: Output) -> PyResult<Option<Bound<'py, PyAny>>> {
    let tensor = match output {
        Output::Absent => return Ok(None),
        Output::Text(texts) => return Ok(Some(texts.into_pyobject(frame.py)?.into_any())),
        Output::Tensor(tensor) => tensor,
    };
    let (mut slot, mut memory) = (OutputSlot::EMPTY, TensorMut::empty());
    let spec = Dims::new(tensor.shape()).map(|sizes| (sizes, tensor.dtype()));
    let allocated = slot.allocate(frame, spec, &mut memory);
    allocated.map_err(|error| raise_kernel(frame.py, frame.operation, error))?;
    let same = memory.shape() == tensor.shape() && memory.dtype() == tensor.dtype() && memory.is_contiguous();
    if !same {
        return Err(PyValueError::new_err("the library of the first tensor cannot allocate the output"));
    }
    let bytes = tensor.bytes();
    // SAFETY: both are dense with the same shape and dtype, and the memory was allocated just now.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.as_mut_ptr(), bytes.len()) };
    Ok(slot.into_object())
}

/// Selects among calls in several quantization formats; `stored` is the format of the data, if it is quantized.
#[pyfunction]
fn choose_format<'py>(
    py: Python<'py>,
    calls: Vec<(String, String, Bound<'py, PyDict>)>,
    stored: Option<&str>,
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<(String, String, bool, f64)> {
    let config = QuantConfig::of(engine()?);
    let engine = engine_for(py, device, backends)?;
    let no_arguments = PyTuple::empty(py);
    let mut described = Vec::with_capacity(calls.len());
    for (format, name, keywords) in &calls {
        let (info, context) = described_call(py, name, &no_arguments, Some(keywords))?;
        described.push((format, info, context));
    }
    let calls: Vec<FormatCall<'_>> = described
        .iter()
        .map(|(format, operation, context)| FormatCall { format: format.as_str(), operation, context })
        .collect();
    let choice = py.detach(|| engine.choose_format(&config, stored, &calls));
    let choice = choice.map_err(|error| raise(py, &error))?;
    Ok((choice.format, choice.kernel, choice.requantize, choice.points))
}

/// The kernels of a draft model's call and its target's, selected together: both, and the sum of their scores.
#[pyfunction]
fn speculative_pair<'py>(
    py: Python<'py>,
    draft: Call<'py>,
    target: Call<'py>,
    pipeline_stages: (u32, u32),
    device: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<(String, String, f64)> {
    let no_arguments = PyTuple::empty(py);
    let describe = |(name, keywords): &Call<'py>| described_call(py, name, &no_arguments, Some(keywords));
    let (draft, target) = (describe(&draft)?, describe(&target)?);
    let side = |(operation, context), pipeline_stages| ModelCall { operation, context, pipeline_stages };
    let draft = side((draft.0, &draft.1), pipeline_stages.0);
    let target = side((target.0, &target.1), pipeline_stages.1);
    let pair = if device.is_some() {
        // An engine for another device has no settings of its own.
        let config = SpeculativeConfig::of(engine()?);
        let engine = engine_for(py, device, backends)?;
        py.detach(|| engine.pair(&config, draft, target))
    } else {
        let engine = engine()?;
        py.detach(|| engine.speculative_pair(draft, target))
    };
    let pair = pair.map_err(|error| raise(py, &error))?;
    Ok((pair.draft, pair.target, pair.score))
}

/// The number of tokens to draft for a batch.
#[pyfunction]
fn speculative_tokens(batch: u32) -> PyResult<u32> {
    Ok(SpeculativeConfig::of(engine()?).tokens_for(batch))
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(plan_block, module)?)?;
    module.add_function(wrap_pyfunction!(run_block, module)?)?;
    module.add_function(wrap_pyfunction!(choose_format, module)?)?;
    module.add_function(wrap_pyfunction!(speculative_pair, module)?)?;
    module.add_function(wrap_pyfunction!(speculative_tokens, module)?)
}
