//! Runs Python kernels as part of a call: their results go to the caller unchanged once they are checked against the schema.

use lz_core::kernel::CallRecorder;
use lz_core::recorded::ResultView;
use lz_core::{Arg, DType, KernelError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::Frame;
use crate::output::{Out, copy_into};
use crate::python_kernel::{Param, PythonKernel};
use crate::results::{ExpectedOutput, check_results};
use crate::selection::Selection;
use crate::tensor::BorrowedTensor;
use crate::vectorcall::Argument;

impl PythonKernel {
    /// Runs the kernel: inputs by position, params by keyword with defaults filled in, `out=` if the caller
    /// passed it and the kernel takes it. While planning, the kernel's planner runs instead; what it returns
    /// is called in place of the kernel later.
    pub fn run<'py>(
        &self,
        frame: &mut Frame<'_, 'py>,
        inputs: &[Argument<'_, 'py>],
        params: &[(Argument<'_, 'py>, Param)],
        expected: &[ExpectedOutput],
        out: Argument<'_, 'py>,
    ) -> Result<(), KernelError> {
        let planned = match frame.selection {
            Selection::Select => None,
            Selection::Planned(planned) => planned.run.as_ref(),
            Selection::Plan(_) => return self.plan(frame, inputs, params),
        };
        match self.call(frame.py, planned, inputs, params, out) {
            Ok(_) if out.is_some() && self.takes_out() => Ok(()),
            Ok(result) => {
                let result = check_results(frame, expected, result)?;
                match out {
                    None => frame.keep_result(result),
                    Some(out) => copy_into(out, &result).map_err(|error| frame.failed(error))?,
                }
                Ok(())
            }
            Err(error) => Err(frame.failed(error)),
        }
    }

    /// Calls the function's attribute `plan`, if it has one; the result is called in place of the function
    /// later.
    #[cold]
    fn plan<'py>(
        &self,
        frame: &mut Frame<'_, 'py>,
        inputs: &[Argument<'_, 'py>],
        params: &[(Argument<'_, 'py>, Param)],
    ) -> Result<(), KernelError> {
        let py = frame.py;
        let planner = self.find(py).and_then(|function| function.bind(py).getattr_opt("plan"));
        let planned = planner.and_then(|plan| match plan {
            Some(plan) => self.call(py, Some(&plan.unbind()), inputs, params, None).map(Some),
            None => Ok(None),
        });
        match planned {
            Ok(None) => Ok(()),
            Ok(Some(run)) => {
                frame.keep_result(run);
                Ok(())
            }
            Err(error) => Err(frame.failed(error).before_writing()),
        }
    }
}

/// Records the results of a Python kernel, which are in the caller's `out=` or in the frame. Results that cannot be read are not
/// recorded.
#[cold]
pub fn record_results<'py>(
    recorder: &dyn CallRecorder,
    frame: &Frame<'_, 'py>,
    args: &[Arg<'_>],
    expected: &[ExpectedOutput],
    out: Argument<'_, 'py>,
) {
    let mut given = Out::new(out);
    let returned: Vec<Bound<'py, PyAny>> = match frame.result() {
        Some(result) => match result.cast::<PyTuple>() {
            Ok(several) => several.iter().collect(),
            Err(_) => vec![result.clone()],
        },
        None => Vec::new(),
    };
    let mut returned = returned.into_iter();
    let results: Option<Vec<OwnedResult>> = expected
        .iter()
        .map(|expected| {
            let packed = match expected {
                ExpectedOutput::Absent => return Some(OwnedResult::Absent),
                ExpectedOutput::Tensor(_, dtype) => *dtype == DType::F4E2M1x2,
                ExpectedOutput::Dynamic => false,
            };
            let object = if out.is_some() { given.take() } else { returned.next() }?;
            if let Ok(texts) = object.extract::<Vec<String>>() {
                return Some(OwnedResult::Text(texts));
            }
            let mut tensor = BorrowedTensor::new(object.as_borrowed()).ok()?;
            tensor.nibbles(packed);
            Some(OwnedResult::Tensor(tensor))
        })
        .collect();
    if let Some(results) = results {
        let views: Vec<ResultView<'_>> = results.iter().map(OwnedResult::view).collect();
        recorder.record_results(args, &views);
    }
}

/// A result of a Python kernel.
enum OwnedResult {
    Absent,
    Tensor(BorrowedTensor),
    Text(Vec<String>),
}

impl OwnedResult {
    fn view(&self) -> ResultView<'_> {
        match self {
            OwnedResult::Absent => ResultView::Absent,
            OwnedResult::Tensor(tensor) => ResultView::Tensor(tensor.view()),
            OwnedResult::Text(texts) => ResultView::Text(texts),
        }
    }
}
