//! Convolutions with weights that are packed ahead of the call, compared with the reference.

use lz_core::expr::Value;
use lz_core::kernel::run::{Run, Scratch};
use lz_core::tensor::Dims;
use lz_core::{Arg, DType, KernelEntry, OutArg, ReasonCode, Tensor, TensorView};
use lz_cpu::pool;
use proptest::prelude::*;

fn values(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 37 + seed * 11 + 5) % 101) as f32 / 101.0 - 0.5).collect()
}

#[derive(Debug, Clone)]
struct Case {
    batch: i64,
    channels: i64,
    outputs: i64,
    image: [i64; 2],
    kernel: [i64; 2],
    /// Strides, paddings before and after, dilations.
    window: [i64; 8],
    relu: bool,
    biased: bool,
    /// Whether something is added to the outputs, and whether its columns are apart.
    residual: Option<bool>,
}

impl Case {
    fn out(&self, axis: usize) -> i64 {
        let [stride, before, after, dilation] = [0, 2, 4, 6].map(|first| self.window[first + axis]);
        (self.image[axis] + before + after - dilation * (self.kernel[axis] - 1) - 1).div_euclid(stride) + 1
    }

    fn args<'a>(
        &self,
        x: &'a Tensor,
        weight: &'a Tensor,
        bias: &'a Tensor,
        residual: &'a Tensor,
    ) -> Vec<Arg<'a>> {
        let bias = if self.biased { Arg::Tensor(bias.view()) } else { Arg::Absent };
        let residual = match self.residual {
            None => Arg::Absent,
            Some(apart) => Arg::Tensor(turned(residual, apart)),
        };
        let mut args = vec![Arg::Tensor(x.view()), Arg::Tensor(weight.view()), bias, residual];
        args.extend(self.window.map(|value| Arg::Value(Value::Int(value))));
        args.extend([Arg::Value(Value::Int(1)), Arg::Value(Value::Enum(self.relu.into()))]);
        args
    }
}

/// A tensor of outputs, or one of the same shape whose rows and columns are exchanged in memory.
fn turned(tensor: &Tensor, apart: bool) -> TensorView<'_> {
    if !apart {
        return tensor.view();
    }
    let mut layout = *tensor.view().layout();
    let mut strides = layout.strides.to_vec();
    (strides[2], strides[3]) = (1, layout.shape[2]);
    layout.strides = Dims::new(&strides).unwrap();
    // SAFETY: the same elements in another order.
    unsafe { TensorView::from_raw(tensor.view().as_ptr(), layout) }
}

fn run(entry: &KernelEntry, args: &mut [Arg<'_>], shape: &[i64], packed: bool) -> Option<Tensor> {
    let mut output = Tensor::zeros(shape, DType::F32).unwrap();
    let mut prepared = Vec::new();
    if packed {
        let prepare = entry.prepare.as_ref()?;
        assert_eq!(prepare.inputs(args), [1]);
        let Arg::Tensor(weight) = &args[1] else { unreachable!("the second argument is the weight") };
        match prepare.prepare(weight) {
            Ok(weight) => prepared = vec![None, Some(weight)],
            Err(error) if error.reason.code == ReasonCode::IsaUnsupported => return None,
            Err(error) => panic!("{error}"),
        }
    }
    let mut scratch = Scratch::default();
    let mut run = Run::unbounded(&mut scratch);
    let mut outputs = [OutArg::Tensor(output.view_mut())];
    entry.kernel.run(args, &mut outputs, &mut run.with_prepared(&prepared)).unwrap();
    Some(output)
}

fn check(case: &Case, change: impl Fn(&mut [f32])) -> Result<(), TestCaseError> {
    let (shape, kernel) = (
        [case.batch, case.channels, case.image[0], case.image[1]],
        [case.outputs, case.channels, case.kernel[0], case.kernel[1]],
    );
    let mut data = values(shape.iter().product::<i64>() as usize, 1);
    change(&mut data);
    let x = Tensor::from_slice(&data, &shape).unwrap();
    let weight = Tensor::from_slice(&values(kernel.iter().product::<i64>() as usize, 2), &kernel).unwrap();
    let bias = Tensor::from_slice(&values(case.outputs as usize, 3), &[case.outputs]).unwrap();
    let out = [case.batch, case.outputs, case.out(0), case.out(1)];
    let residual = Tensor::from_slice(&values(out.iter().product::<i64>() as usize, 4), &out).unwrap();
    let is_conv = |entry: &KernelEntry| entry.spec.operation == "primitive.conv2d";
    let reference = lz_primitives::reference_kernels().into_iter().find(is_conv).unwrap();
    let expected = run(&reference, &mut case.args(&x, &weight, &bias, &residual), &out, false).unwrap();
    for entry in lz_cpu::primitive_kernels().into_iter().filter(is_conv) {
        let mut args = case.args(&x, &weight, &bias, &residual);
        let Some(found) = run(&entry, &mut args, &out, true) else { continue };
        let unpacked = run(&entry, &mut args, &out, false).unwrap();
        for index in lz_core::tensor::Indices::new(&out) {
            let expected = expected.view().at(&index);
            for found in [&found, &unpacked].map(|found| found.view().at(&index)) {
                let same = found == expected
                    || found.is_nan() && expected.is_nan()
                    || (found - expected).abs() <= 1e-4 * (1.0 + expected.abs());
                prop_assert!(same, "{}: {index:?} is {found}, but should be {expected}", entry.spec.id);
            }
        }
        let threads = pool::with_threads(3, || run(&entry, &mut args, &out, true)).unwrap();
        prop_assert_eq!(found.bytes(), threads.bytes());
    }
    Ok(())
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1i64..3, 1i64..5, 1i64..20, [1i64..20, 1i64..24], [1i64..5, 1i64..5]);
    let window = [1i64..4, 1i64..4, 0i64..4, 0i64..4, 0i64..4, 0i64..4, 1i64..3, 1i64..3];
    (sizes, window, any::<bool>(), any::<bool>(), any::<Option<bool>>())
        .prop_map(|((batch, channels, outputs, image, kernel), window, relu, biased, residual)| Case {
            batch,
            channels,
            outputs,
            image,
            kernel,
            window,
            relu,
            biased,
            residual,
        })
        .prop_filter("the kernel fits", |case| case.out(0) > 0 && case.out(1) > 0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn packed_weights_equal_the_reference(case in cases()) {
        check(&case, |_| {})?;
    }
}

/// Several tiles of pixels, both orders of tasks.
#[test]
fn layers_of_a_residual_network() {
    for (channels, outputs, size, stride) in [(3, 64, 30, 2), (64, 64, 14, 1), (128, 160, 9, 2)] {
        let case = Case {
            batch: 1,
            channels,
            outputs,
            image: [size, size],
            kernel: [3, 3],
            window: [stride, stride, 1, 1, 1, 1, 1, 1],
            relu: true,
            biased: true,
            residual: Some(false),
        };
        check(&case, |_| {}).unwrap();
    }
}

#[test]
fn values_that_are_not_finite_reach_only_their_windows() {
    let case = Case {
        batch: 1,
        channels: 2,
        outputs: 3,
        image: [5, 9],
        kernel: [3, 3],
        window: [1, 1, 1, 1, 1, 1, 1, 1],
        relu: false,
        biased: true,
        residual: Some(false),
    };
    check(&case, |data| {
        data[3] = f32::INFINITY;
        data[44] = f32::NAN;
        data[60] = f32::MAX;
    })
    .unwrap();
}
