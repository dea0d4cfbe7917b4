//! The native half of the Python package. It turns Python objects into views, calls the engine, and turns answers back;
//! what an operation is comes from generated code, what a kernel does from backends.

mod arguments;
mod backend;
mod call;
mod control;
mod cuda;
mod decisions;
mod elsewhere;
mod engine;
mod error;
mod fastcall;
mod function;
#[rustfmt::skip]
mod generated;
mod health;
mod hosted;
mod inspect;
mod jit;
mod operation;
mod output;
mod plan;
mod prepare;
mod private;
mod register;
mod results;
mod runtime;
mod split;
mod tensor;
mod text;
mod tokenizers;
mod torch_attention;
mod torch_norm;
mod torch_ops;
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
            "layerzero keeps one engine a process and cannot be imported into a sub-interpreter",
        ));
    }
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("BUILT_IN_BACKENDS", lz_core::built_in::BUILT_IN_BACKENDS.to_vec())?;
    error::add(module)?;
    engine::add(module)?;
    inspect::add(module)?;
    register::add(module)?;
    results::add(module)?;
    health::add(module)?;
    backend::add(module)?;
    decisions::add(module)?;
    torch_ops::add(module)?;
    torch_attention::add(module)?;
    torch_norm::add(module)?;
    control::add(module)?;
    prepare::add(module)?;
    private::add(module)?;
    runtime::add(module)?;
    plan::add(module)?;
    worker::add(module)?;
    jit::add(module)?;
    cuda::add(module)?;
    module.add_class::<text::PyTokenizer>()?;
    tokenizers::add(module)?;
    let ops = PyModule::new(module.py(), "ops")?;
    function::add(&ops, generated::ENTRIES)?;
    module.add_submodule(&ops)?;
    Ok(())
}
