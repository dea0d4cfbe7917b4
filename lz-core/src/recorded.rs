//! An owned copy of a call: its arguments before a kernel ran and its results afterwards. The call can be repeated later with
//! another kernel, when the caller's own memory is gone.

use lz_schema::expr::Value;

use crate::args::{Arg, OutArg};
use crate::check::{self, OutputSpec, values};
use crate::context::Context;
use crate::dynamic;
use crate::equivalence;
use crate::error::Error;
use crate::operation::OperationInfo;
use crate::tensor::{Device, Dims, Layout, Tensor, TensorMut, TensorView, copy_elements};

/// A tensor of a recorded call: a dense copy in host memory, and how the caller's tensor was laid out.
#[derive(Debug, Clone)]
pub struct RecordedTensor {
    /// The elements.
    pub data: Tensor,
    /// The strides of the caller's tensor.
    pub strides: Vec<i64>,
    /// The device of the caller's tensor.
    pub device: Device,
    /// Whether the call changes it in place.
    pub read_write: bool,
}

/// An argument of a recorded call.
#[derive(Debug, Clone)]
pub enum RecordedArg {
    /// An absent optional input.
    Absent,
    /// A tensor.
    Tensor(RecordedTensor),
    /// A batch of strings.
    Text(Vec<String>),
    /// A param.
    Value(Value),
}

/// A result of a recorded call.
#[derive(Debug, Clone)]
pub enum RecordedResult {
    /// The call does not produce it.
    Absent,
    /// A tensor, dense and in host memory.
    Tensor(Tensor),
    /// Strings.
    Text(Vec<String>),
}

/// The arguments (inputs, then params) and the results of a call: its outputs, then the inputs that it changes in place.
#[derive(Debug, Clone, Default)]
pub struct RecordedCall {
    /// The arguments as they were before the call.
    pub args: Vec<RecordedArg>,
    /// The results.
    pub results: Vec<RecordedResult>,
}

/// The result of an output, before it is copied.
#[derive(Default)]
pub enum ResultView<'a> {
    /// The call does not produce it.
    #[default]
    Absent,
    /// A tensor.
    Tensor(TensorView<'a>),
    /// Strings.
    Text(&'a [String]),
}

impl<'a> ResultView<'a> {
    /// The result in an output slot.
    pub fn of(output: &'a OutArg<'_>) -> ResultView<'a> {
        match output {
            OutArg::Absent => ResultView::Absent,
            OutArg::Tensor(tensor) => ResultView::Tensor(tensor.as_view()),
            OutArg::Dynamic(slot) => {
                slot.as_ref().map_or(ResultView::Absent, |tensor| ResultView::Tensor(tensor.view()))
            }
            OutArg::Text(slot) => slot.as_ref().map_or(ResultView::Absent, |texts| ResultView::Text(texts)),
        }
    }

    /// All results of a call: its outputs, then the inputs that it changed in place.
    pub fn all(args: &'a [Arg<'_>], outputs: &'a [OutArg<'_>]) -> Vec<ResultView<'a>> {
        let changed = args.iter().filter_map(|arg| match arg {
            Arg::TensorMut(tensor) => Some(ResultView::Tensor(tensor.as_view())),
            _ => None,
        });
        outputs.iter().map(ResultView::of).chain(changed).collect()
    }
}

impl<'a> From<&'a RecordedResult> for ResultView<'a> {
    fn from(result: &'a RecordedResult) -> ResultView<'a> {
        match result {
            RecordedResult::Absent => ResultView::Absent,
            RecordedResult::Tensor(tensor) => ResultView::Tensor(tensor.view()),
            RecordedResult::Text(texts) => ResultView::Text(texts),
        }
    }
}

/// How the results of a call differ from the expected ones by the schema's equivalence; `None` if they do not. The results are
/// the outputs, then the inputs that the call changed in place.
pub fn difference<'a>(
    operation: &OperationInfo,
    found: impl IntoIterator<Item = impl Into<ResultView<'a>>>,
    expected: impl IntoIterator<Item = impl Into<ResultView<'a>>>,
) -> Option<String> {
    let schema = operation.schema();
    let outputs = schema.outputs.iter().map(|output| &output.name);
    let changed = schema.inputs.iter().filter(|input| input.read_write).map(|input| &input.name);
    let pairs = found.into_iter().map(Into::into).zip(expected.into_iter().map(Into::into));
    outputs.chain(changed).zip(pairs).find_map(|(name, pair)| {
        let difference = match pair {
            (ResultView::Tensor(found), ResultView::Tensor(expected)) => {
                equivalence::difference(schema, &found, &expected)?
            }
            (ResultView::Text(found), ResultView::Text(expected)) => {
                let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
                match at {
                    Some(at) => format!("[{at}] is {:?}, but should be {:?}", found[at], expected[at]),
                    None if found.len() == expected.len() => return None,
                    None => format!("has {} texts, but should have {}", found.len(), expected.len()),
                }
            }
            (ResultView::Absent, ResultView::Absent) => return None,
            _ => "is produced by only one of the kernels".to_owned(),
        };
        Some(format!("{name}{}{difference}", if difference.starts_with('[') { "" } else { " " }))
    })
}

impl RecordedCall {
    /// Copies the arguments of a call. `None` if there is a handle, which cannot be copied, or if memory of a device cannot be
    /// read now.
    pub fn arguments(args: &[Arg<'_>]) -> Option<RecordedCall> {
        let args = args.iter().map(|arg| {
            Some(match arg {
                Arg::Absent => RecordedArg::Absent,
                Arg::Tensor(view) => RecordedArg::Tensor(recorded_tensor(view, false)?),
                Arg::TensorMut(tensor) => RecordedArg::Tensor(recorded_tensor(tensor.view(), true)?),
                Arg::Text(texts) => RecordedArg::Text(texts.iter().map(|&text| text.to_owned()).collect()),
                Arg::Handle(_) => return None,
                Arg::Value(value) => RecordedArg::Value(*value),
            })
        });
        Some(RecordedCall { args: args.collect::<Option<_>>()?, results: Vec::new() })
    }

    /// Copies the results of the call: `outputs`, and the tensors among `args` that it changed in place. Returns false if memory of a
    /// device cannot be read now.
    #[must_use]
    pub fn add_results(&mut self, args: &[Arg<'_>], outputs: &[ResultView<'_>]) -> bool {
        let outputs = outputs.iter().map(|output| {
            Some(match output {
                ResultView::Absent => RecordedResult::Absent,
                ResultView::Tensor(view) => RecordedResult::Tensor(dense_copy(view)?),
                ResultView::Text(texts) => RecordedResult::Text(texts.to_vec()),
            })
        });
        let changed = args.iter().filter_map(|arg| match arg {
            Arg::TensorMut(tensor) => Some(dense_copy(tensor.view()).map(RecordedResult::Tensor)),
            _ => None,
        });
        let results: Option<Vec<RecordedResult>> = outputs.chain(changed).collect();
        let is_complete = results.is_some();
        self.results = results.unwrap_or_default();
        is_complete
    }

    /// Memory of the tensors.
    pub fn bytes(&self) -> u64 {
        let args = self.args.iter().filter_map(|arg| match arg {
            RecordedArg::Tensor(tensor) => Some(&tensor.data),
            _ => None,
        });
        let results = self.results.iter().filter_map(|result| match result {
            RecordedResult::Tensor(tensor) => Some(tensor),
            _ => None,
        });
        args.chain(results).map(|tensor| tensor.bytes().len() as u64).sum()
    }

    /// Repeats the call in host memory: `run` gets its context, arguments and outputs. Returns the results. With `original_layout`
    /// the tensors have the strides of the caller's tensors, otherwise they are dense.
    pub fn repeat<E: From<Error>>(
        &self,
        operation: &'static OperationInfo,
        original_layout: bool,
        run: impl FnOnce(&Context, &mut [Arg<'_>], &mut [OutArg<'_>]) -> Result<(), E>,
    ) -> Result<Vec<RecordedResult>, E> {
        let schema = operation.schema();
        let mut memory: Vec<Option<StridedCopy>> = self.args.iter().map(|_| None).collect();
        for (slot, arg) in memory.iter_mut().zip(&self.args) {
            if let RecordedArg::Tensor(tensor) = arg {
                *slot = Some(StridedCopy::new(tensor, original_layout));
            }
        }
        let texts: Vec<Vec<&str>> = self
            .args
            .iter()
            .map(|arg| match arg {
                RecordedArg::Text(texts) => texts.iter().map(String::as_str).collect(),
                _ => Vec::new(),
            })
            .collect();
        let mut args: Vec<Arg<'_>> = Vec::with_capacity(self.args.len());
        for ((arg, slot), texts) in self.args.iter().zip(&mut memory).zip(&texts) {
            args.push(match (arg, slot) {
                (RecordedArg::Tensor(tensor), Some(copy)) => {
                    if tensor.read_write {
                        Arg::TensorMut(copy.view_mut())
                    } else {
                        Arg::Tensor(copy.view())
                    }
                }
                (RecordedArg::Text(_), _) => Arg::Text(texts),
                (RecordedArg::Value(value), _) => Arg::Value(*value),
                _ => Arg::Absent,
            });
        }
        let bound = check::check_call(schema, &args, None)?;
        let specs = check::infer_outputs(schema, &bound)
            .map_err(|reason| Error::Validation { operation: schema.name.clone(), reasons: vec![reason] })?;
        let mut tensors: Vec<Option<Tensor>> = Vec::with_capacity(specs.len());
        for spec in &specs {
            tensors.push(match spec {
                OutputSpec::Tensor(sizes, dtype) => Some(check::allocate(operation, Some((*sizes, *dtype)))?),
                _ => None,
            });
        }
        let mut strings: Vec<Option<Vec<String>>> = specs.iter().map(|_| None).collect();
        let mut outputs: Vec<OutArg<'_>> = Vec::with_capacity(specs.len());
        for (spec, (tensor, text)) in specs.iter().zip(tensors.iter_mut().zip(&mut strings)) {
            outputs.push(match (spec, tensor) {
                (OutputSpec::Absent, _) => OutArg::Absent,
                (OutputSpec::Text, _) => OutArg::Text(text),
                (OutputSpec::Tensor(..), Some(tensor)) => OutArg::Tensor(tensor.view_mut()),
                (_, tensor) => OutArg::Dynamic(tensor),
            });
        }
        let context = dynamic::context(schema, &bound, &args, None)?;
        run(&context, &mut args, &mut outputs)?;
        let mut repeated = RecordedCall::default();
        let views: Vec<ResultView<'_>> = outputs.iter().map(ResultView::of).collect();
        // Host memory can always be read.
        let _ = repeated.add_results(&args, &views);
        Ok(repeated.results)
    }
}

fn recorded_tensor(view: &TensorView<'_>, read_write: bool) -> Option<RecordedTensor> {
    let (strides, device) = (view.strides().to_vec(), view.device());
    Some(RecordedTensor { data: dense_copy(view)?, strides, device, read_write })
}

/// A dense copy in host memory. `None` if memory of a device cannot be read now, or the layout is unsound.
pub fn dense_copy(view: &TensorView<'_>) -> Option<Tensor> {
    if !view.is_sound() {
        return None;
    }
    values::with_host_copy(view, |view| {
        let mut copy = Tensor::zeros(view.shape(), view.dtype()).ok()?;
        copy_elements(view, &mut copy.view_mut()).then_some(copy)
    })
    .flatten()
}

/// A tensor in the layout of the caller's tensor.
struct StridedCopy {
    memory: Tensor,
    layout: Layout,
    /// The offset of the element at index 0, in bytes.
    start: usize,
}

impl StridedCopy {
    fn new(tensor: &RecordedTensor, original_layout: bool) -> StridedCopy {
        let strided = original_layout.then(|| StridedCopy::strided(tensor)).flatten();
        strided.unwrap_or_else(|| StridedCopy {
            layout: *tensor.data.view().layout(),
            memory: tensor.data.clone(),
            start: 0,
        })
    }

    /// `None` if the recorded strides do not describe memory of a reasonable size.
    fn strided(tensor: &RecordedTensor) -> Option<StridedCopy> {
        const MAX_GROWTH: i64 = 64;
        let dense = tensor.data.view();
        let layout = Layout { strides: Dims::new(&tensor.strides)?, ..*dense.layout() };
        if !layout.is_sound() {
            return None;
        }
        let (lowest, highest) = layout.reach().filter(|(lowest, highest)| lowest <= highest)?;
        let elements = highest.checked_sub(lowest)?.checked_add(1)?;
        if elements > dense.elements().saturating_mul(MAX_GROWTH) {
            return None;
        }
        let memory = Tensor::zeros(&[elements], dense.dtype()).ok()?;
        let start = usize::try_from(lowest.checked_neg()?).ok()?.checked_mul(dense.dtype().size())?;
        let mut copy = StridedCopy { memory, layout, start };
        copy_elements(&dense, &mut copy.view_mut()).then_some(copy)
    }

    fn view(&self) -> TensorView<'_> {
        let data = self.memory.bytes().as_ptr().wrapping_add(self.start);
        // SAFETY: the memory has every element that the layout reaches from `start`, and is borrowed.
        unsafe { TensorView::from_raw(data, self.layout) }
    }

    fn view_mut(&mut self) -> TensorMut<'_> {
        let data = self.memory.bytes_mut().as_mut_ptr().wrapping_add(self.start);
        // SAFETY: as above, and borrowed exclusively.
        unsafe { TensorMut::from_raw(data, self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use lz_schema::DType;

    use super::*;

    #[test]
    fn strided_tensors_are_recorded_and_repeated_in_their_layout() {
        let data: Vec<f32> = (0..24).map(|number| number as f32).collect();
        let layout = Layout {
            shape: Dims::new(&[3, 4]).unwrap(),
            strides: Dims::new(&[-4, 1]).unwrap(),
            dtype: DType::F32,
            device: Device::HOST,
        };
        let view = TensorView::from_slice_with(&data, 16, layout).unwrap();
        let recorded = recorded_tensor(&view, false).unwrap();
        let dense: Vec<f32> = recorded.data.view().as_slice::<f32>().unwrap().to_vec();
        assert_eq!(dense, [16., 17., 18., 19., 12., 13., 14., 15., 8., 9., 10., 11.]);
        let copy = StridedCopy::new(&recorded, true);
        assert_eq!(copy.view().strides(), [-4, 1]);
        assert_eq!(copy.view().at(&[2, 3]), 11.0);
        let transposed = Layout { strides: Dims::new(&[1, 6]).unwrap(), ..layout };
        let view = TensorView::from_slice_with(&data, 0, transposed).unwrap();
        let recorded = recorded_tensor(&view, false).unwrap();
        assert_eq!(recorded.data.view().at(&[1, 2]), 13.0);
        assert_eq!(StridedCopy::new(&recorded, false).view().strides(), [4, 1]);
    }

    #[test]
    fn scalars_and_empty_tensors_are_recorded() {
        let scalar = TensorView::from_slice(&[7i32], &[]).unwrap();
        assert_eq!(recorded_tensor(&scalar, false).unwrap().data.view().int_at(&[]), 7);
        let empty = TensorView::from_slice(&[0i32; 0], &[0, 3]).unwrap();
        assert!(recorded_tensor(&empty, false).unwrap().data.bytes().is_empty());
    }
}
