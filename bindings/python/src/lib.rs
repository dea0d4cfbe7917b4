//! The native module of the Python package. It converts Python objects to tensor views, calls the engine and
//! converts the outputs back. Operations are defined by generated code, kernels by backends.

mod arguments;
mod backend;
mod block;
mod call;
mod compare;
mod control;
mod cuda;
mod decisions;
mod dynamic_call;
mod engine;
mod error;
mod fastcall;
mod fleet;
mod function;
#[rustfmt::skip]
mod generated;
mod graph;
mod health;
mod inspect;
mod interrupt;
mod jit;
mod logs;
mod onnxruntime;
mod operation;
mod output;
mod plan;
mod prepare;
mod private;
mod python_kernel;
mod python_kernel_run;
mod register;
mod reload;
mod results;
mod runtime;
mod selection;
mod serve;
mod simulate;
mod split;
mod statistics;
mod telemetry;
mod tensor;
mod text;
mod text_stream;
mod token_batch;
mod token_cache;
mod token_encode;
mod token_id;
mod token_lists;
mod tokenizers;
mod torch_attention;
mod torch_dispatch;
mod torch_norm;
mod torch_ops;
mod vectorcall;
mod verification;
mod worker;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// `layerzero._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // SAFETY: the interpreter is attached while it imports.
    if unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } != 0 {
        return Err(PyImportError::new_err(
            "layerzero has one engine per process and cannot be imported in a sub-interpreter; import it in the main interpreter",
        ));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("BUILT_IN_BACKENDS", lz_core::built_in::BUILT_IN_BACKENDS.to_vec())?;
    error::add(module)?;
    engine::connect_on_open(|engine| {
        cuda::connect(engine);
        // On failure, loading an isolated plugin reports that `worker.program` was not found.
        let _ = Python::attach(worker::use_interpreter_for_plugins);
        engine.set_annotate(Some(telemetry::TorchRanges::shared()));
        engine.set_result_comparison(Some(std::sync::Arc::new(compare::PythonResults)));
    });
    engine::add(module)?;
    inspect::add(module)?;
    register::add(module)?;
    reload::add(module)?;
    results::add(module)?;
    health::add(module)?;
    statistics::add(module)?;
    backend::add(module)?;
    block::add(module)?;
    decisions::add(module)?;
    torch_ops::add(module)?;
    torch_attention::add(module)?;
    torch_norm::add(module)?;
    control::add(module)?;
    prepare::add(module)?;
    fleet::add(module)?;
    private::add(module)?;
    tensor::add(module)?;
    runtime::add(module)?;
    plan::add(module)?;
    worker::add(module)?;
    jit::add(module)?;
    logs::add(module)?;
    telemetry::add(module)?;
    cuda::add(module)?;
    graph::add(module)?;
    onnxruntime::add(module)?;
    serve::add(module)?;
    verification::add(module)?;
    simulate::add(module)?;
    module.add_class::<text::PyTokenizer>()?;
    module.add_class::<text_stream::PyTextStream>()?;
    module.add_class::<token_cache::PyTokenCache>()?;
    token_batch::add(module)?;
    token_encode::add(module)?;
    tokenizers::add(module)?;
    let ops = PyModule::new(module.py(), "ops")?;
    function::add(&ops, generated::ENTRIES)?;
    module.add_submodule(&ops)?;
    Ok(())
}
