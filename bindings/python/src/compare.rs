//! Compares the results of a canary in Python with those of the stable version: tensors of the caller's own library.

use lz_core::{KernelEntry, OperationInfo};
use lz_engine::rollout::{CompareResults, KeptResults};
use lz_schema::model::Equivalence;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::python_kernel::PythonKernel;

/// Compares with a function of the package.
pub struct PythonResults;

impl CompareResults for PythonResults {
    fn keeping_results(&self, operation: &OperationInfo, entry: &KernelEntry) -> Option<KeptResults> {
        let hosted = PythonKernel::of(entry)?;
        Python::attach(|py| {
            let kept = PyList::empty(py);
            let module = py.import("layerzero._reload").ok()?;
            let function = hosted.find(py).ok()?;
            let keeping = module.getattr("keeping_results").ok()?.call1((function, &kept)).ok()?;
            let params = operation.schema().kernel_params().map(|param| param.name.as_str());
            // Without `out`, so that there is a result to keep; the caller's `out` is filled from it.
            let kernel = PythonKernel::new(&keeping, false, params).ok()?;
            let entry = KernelEntry { kernel: std::sync::Arc::new(kernel), ..entry.clone() };
            Some(KeptResults { entry, results: Box::new(kept.unbind()) })
        })
    }

    fn difference(
        &self,
        operation: &OperationInfo,
        found: &KeptResults,
        expected: &KeptResults,
    ) -> Option<String> {
        let tolerances: Vec<(&str, f64, f64)> = match &operation.schema().equivalence {
            Equivalence::Close(all) => {
                all.iter().map(|(dtype, rtol, atol)| (dtype.long_name(), *rtol, *atol)).collect()
            }
            Equivalence::Exact | Equivalence::Distribution(_) => Vec::new(),
        };
        Python::attach(|py| {
            let compare = || {
                let difference = py.import("layerzero._reload")?.getattr("difference")?;
                let kept = |kept: &KeptResults| {
                    kept.results.downcast_ref::<Py<PyList>>().map(|list| list.clone_ref(py))
                };
                difference.call1((kept(found), kept(expected), tolerances))?.extract::<Option<String>>()
            };
            // Results that cannot be compared are no reason to trust a canary.
            compare().unwrap_or_else(|error: PyErr| Some(format!("the results cannot be compared: {error}")))
        })
    }
}
