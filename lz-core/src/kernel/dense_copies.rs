//! Runs a kernel that needs dense tensors on dense copies of strided ones.

use std::any::Any;
use std::sync::Arc;

use super::{Kernel, KernelEntry, KernelError};
use crate::args::{Arg, OutArg};
use crate::kernel::run::Run;
use crate::plan::Transforms;
use crate::reason::{Reason, ReasonCode};
use crate::spec::StrideNeeds;
use crate::tensor::{Dims, Layout, Tensor, TensorMut, TensorView, copy_elements};

/// The kernel, with copies of the tensors whose strides it does not take.
struct DenseCopies {
    inner: Arc<dyn Kernel>,
    strides: StrideNeeds,
}

impl KernelEntry {
    /// The form of this kernel that copies strided inputs before it runs, and strided outputs after. Inputs that are changed in
    /// place are passed unchanged.
    #[must_use]
    pub fn with_dense_copies(&self) -> KernelEntry {
        let kernel = DenseCopies { inner: Arc::clone(&self.kernel), strides: self.spec.strides };
        // What was prepared or fused is read by the kernel itself.
        KernelEntry { kernel: Arc::new(kernel), prepare: None, fused: None, ..self.clone() }
    }
}

impl DenseCopies {
    fn takes(&self, view: &TensorView<'_>) -> bool {
        match self.strides {
            StrideNeeds::Any => true,
            StrideNeeds::LastDense => view.last_is_dense(),
            StrideNeeds::Contiguous => view.is_contiguous(),
        }
    }
}

impl Kernel for DenseCopies {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let mut inputs: Vec<Option<DenseCopy>> = Vec::with_capacity(args.len());
        for arg in args.iter() {
            inputs.push(match arg {
                Arg::Tensor(view) if !self.takes(view) => Some(DenseCopy::new(view, self.strides)?),
                _ => None,
            });
        }
        let mut results: Vec<Option<Tensor>> = Vec::with_capacity(outputs.len());
        for output in outputs.iter() {
            results.push(match output {
                OutArg::Tensor(tensor) if !self.takes(tensor.view()) => Some(result_memory(tensor.view())?),
                _ => None,
            });
        }
        run.transforms = Transforms::NONE;
        {
            let mut dense_args: Vec<Arg<'_>> = Vec::with_capacity(inputs.len());
            for (arg, copy) in args.iter_mut().zip(&inputs) {
                dense_args.push(match copy {
                    Some(copy) => Arg::Tensor(copy.view()),
                    None => arg.reborrow(),
                });
            }
            let mut dense_outputs: Vec<OutArg<'_>> = Vec::with_capacity(results.len());
            for (output, result) in outputs.iter_mut().zip(&mut results) {
                dense_outputs.push(match result {
                    Some(result) => OutArg::Tensor(result.view_mut()),
                    None => output.reborrow(),
                });
            }
            self.inner.run(&mut dense_args, &mut dense_outputs, run)?;
        }
        for (output, result) in outputs.iter_mut().zip(&results) {
            if let (OutArg::Tensor(tensor), Some(result)) = (output, result) {
                // The kernel ran: it may have written other outputs and inputs that it changes, so no fallback may run.
                copy_into(&result.view(), tensor)?;
            }
        }
        Ok(())
    }
}

/// A copy of a tensor whose last dimension is dense, or all of them.
struct DenseCopy {
    memory: Tensor,
    layout: Layout,
}

impl DenseCopy {
    /// Copies a tensor. Dimensions along which it is broadcast (stride 0) stay so where the kernel takes that: the copy of an
    /// expanded tensor is not larger than the tensor that was expanded.
    fn new(view: &TensorView<'_>, needs: StrideNeeds) -> Result<DenseCopy, KernelError> {
        let whole = *view.layout();
        let last = whole.shape.len().saturating_sub(1);
        let keeps =
            |dim: usize| needs == StrideNeeds::LastDense && dim < last && whole.strides.get(dim) == Some(&0);
        // The number of dimensions stays the same, so they fit.
        let changed = |dims: &Dims, value: i64| {
            let changed: Vec<i64> = dims
                .iter()
                .enumerate()
                .map(|(dim, &old)| if keeps(dim) { old.min(value) } else { old })
                .collect();
            Dims::new(&changed).unwrap_or(*dims)
        };
        let distinct = Layout { shape: changed(&whole.shape, 1), ..whole };
        // SAFETY: it has no other elements than the view.
        let from = unsafe { TensorView::from_raw(view.as_ptr(), distinct) };
        let mut memory = memory(&from)?;
        copy_into(&from, &mut memory.view_mut()).map_err(KernelError::before_writing)?;
        let layout = Layout { strides: changed(&memory.view().layout().strides, 0), ..whole };
        Ok(DenseCopy { memory, layout })
    }

    fn view(&self) -> TensorView<'_> {
        // SAFETY: the layout reaches the elements of the memory only, some of them several times.
        unsafe { TensorView::from_raw(self.memory.bytes().as_ptr(), self.layout) }
    }
}

/// Memory for a dense tensor of the same shape.
fn memory(view: &TensorView<'_>) -> Result<Tensor, KernelError> {
    Tensor::zeros(view.shape(), view.dtype()).map_err(|reason| KernelError::because(reason).before_writing())
}

/// Memory for a dense form of an output, into which it can be copied after the run. Outputs that cannot be copied are refused before
/// the kernel writes anything.
fn result_memory(output: &TensorView<'_>) -> Result<Tensor, KernelError> {
    if output.device().is_host() && output.is_sound() {
        memory(output)
    } else {
        Err(uncopyable().before_writing())
    }
}

/// Copies a tensor. An error says nothing about what was written before the copy.
fn copy_into(from: &TensorView<'_>, to: &mut TensorMut<'_>) -> Result<(), KernelError> {
    if copy_elements(from, to) { Ok(()) } else { Err(uncopyable()) }
}

fn uncopyable() -> KernelError {
    let message = "a strided tensor that is not in host memory cannot be copied";
    KernelError::because(Reason::new(ReasonCode::TransformUnavailable).message(message))
}

#[cfg(test)]
mod tests {
    use lz_schema::DType;

    use super::*;
    use crate::device::Platform;
    use crate::kernel::run::Scratch;
    use crate::tensor::{Device, Indices};

    /// Writes ones into its first argument, which it changes in place, and its output, which must be dense.
    struct Ones;

    impl Kernel for Ones {
        fn as_any(&self) -> &dyn Any {
            self
        }

        fn run(
            &self,
            args: &mut [Arg<'_>],
            outputs: &mut [OutArg<'_>],
            _run: &mut Run<'_>,
        ) -> Result<(), KernelError> {
            if let [Arg::TensorMut(changed)] = args {
                changed.set(&[0], 1.0);
            }
            if let [OutArg::Tensor(output)] = outputs {
                assert!(output.is_contiguous());
                Indices::new(&[2, 2]).for_each(|index| output.set(&index, 1.0));
            }
            Ok(())
        }
    }

    /// Runs [`Ones`] on copies of a transposed output on a device. The result is that of the call, the changed argument, and the output.
    fn run_transposed(device: Device) -> (Result<(), KernelError>, f32, Vec<f32>) {
        let copies = DenseCopies { inner: Arc::new(Ones), strides: StrideNeeds::Contiguous };
        let (mut changed, mut data) = ([0.0f32; 1], vec![0.0f32; 4]);
        let dims = |dims: &[i64]| Dims::new(dims).unwrap();
        let layout = Layout { shape: dims(&[2, 2]), strides: dims(&[1, 2]), dtype: DType::F32, device };
        // SAFETY: the memory has the elements of the layout and outlives the call; off-host tensors are not accessed.
        let output = unsafe { TensorMut::from_raw(data.as_mut_ptr().cast(), layout) };
        let argument = TensorMut::from_slice(&mut changed, &[1]).unwrap();
        let mut scratch = Scratch::default();
        let result = copies.run(
            &mut [Arg::TensorMut(argument)],
            &mut [OutArg::Tensor(output)],
            &mut Run::unbounded(&mut scratch),
        );
        (result, changed[0], data)
    }

    #[test]
    fn outputs_that_cannot_be_copied_are_refused_before_the_kernel_runs() {
        let (result, changed, data) = run_transposed(Device::HOST);
        result.unwrap();
        assert_eq!((changed, data), (1.0, vec![1.0; 4]));
        let (result, changed, data) = run_transposed(Device { platform: Platform::Cuda, index: 0 });
        let error = result.unwrap_err();
        assert_eq!(error.reason.code, ReasonCode::TransformUnavailable);
        assert!(error.untouched, "a fallback may run");
        assert_eq!((changed, data), (0.0, vec![0.0; 4]), "the kernel did not run");
    }

    /// After the kernel ran, another kernel must not run on what it changed.
    #[test]
    fn a_failed_copy_back_does_not_count_as_before_writing() {
        let from = Tensor::zeros(&[2, 2], DType::F32).unwrap();
        let mut to = Tensor::zeros(&[2, 3], DType::F32).unwrap();
        let error = copy_into(&from.view(), &mut to.view_mut()).unwrap_err();
        assert!(!error.untouched);
    }

    #[test]
    fn broadcast_dimensions_are_not_expanded() {
        let data: Vec<f32> = (0..12).map(|at| at as f32).collect();
        let layout = Layout {
            shape: Dims::new(&[1000, 3, 4]).unwrap(),
            strides: Dims::new(&[0, 1, 3]).unwrap(),
            dtype: DType::F32,
            device: Device::HOST,
        };
        let view = TensorView::from_slice_with(&data, 0, layout).unwrap();
        let copy = DenseCopy::new(&view, StrideNeeds::LastDense).unwrap();
        assert_eq!(copy.memory.bytes().len(), 48);
        assert!(copy.view().last_is_dense());
        for index in Indices::new(&[2, 3, 4]) {
            assert_eq!(copy.view().at(&index), view.at(&index));
        }
        let copy = DenseCopy::new(&view, StrideNeeds::Contiguous).unwrap();
        assert!(copy.view().is_contiguous() && copy.memory.bytes().len() == 48_000);
        assert_eq!(copy.view().at(&[999, 1, 2]), view.at(&[0, 1, 2]));
    }
}
