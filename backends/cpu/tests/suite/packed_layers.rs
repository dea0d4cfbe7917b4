//! Linear layers with weights that are packed ahead of the call: the same bits as without for many rows, close results for few.

use lz_core::expr::Value;
use lz_core::kernel::run::{Run, Scratch};
use lz_core::{Arg, DType, OutArg, Tensor, TensorView};
use lz_cpu::pool;

fn floats(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn view<'a>(data: &'a [f32], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

/// Rows up to which unpacked weights are multiplied in another order.
const FEW_ROWS: i64 = 8;

/// Runs a kernel with and without packed weights, with one thread and with several.
fn check_packed(operation: &str, inputs: &[Option<TensorView<'_>>], params: &[u32], rows: i64, columns: i64) {
    for entry in lz_cpu::kernels().into_iter().filter(|entry| entry.spec.operation == operation) {
        let Some(prepare) = entry.prepare.clone() else { continue };
        let mut args: Vec<Arg<'_>> =
            inputs.iter().map(|input| input.map_or(Arg::Absent, Arg::Tensor)).collect();
        args.extend(params.iter().map(|case| Arg::Value(Value::Enum(*case))));
        let packed = prepare.inputs(&args);
        if packed.is_empty() {
            continue;
        }
        let mut prepared = vec![None; inputs.len()];
        let mut supported = true;
        for &input in packed {
            match prepare.prepare(&inputs[input].unwrap()) {
                Ok(weight) => prepared[input] = Some(weight),
                Err(_) => supported = false,
            }
        }
        if !supported {
            continue;
        }
        let mut run = |prepared: &[_], threads| {
            let mut output = Tensor::zeros(&[rows, columns], DType::F32).unwrap();
            let mut outputs = [OutArg::Tensor(output.view_mut())];
            let mut scratch = Scratch::default();
            let mut run = Run::unbounded(&mut scratch);
            pool::with_threads(threads, || {
                entry.kernel.run(&mut args, &mut outputs, &mut run.with_prepared(prepared))
            })
            .unwrap();
            output
        };
        let plain = run(&[], 1);
        let packed = run(&prepared, 1);
        assert_eq!(packed.bytes(), run(&prepared, 3).bytes(), "{}: threads change the result", entry.spec.id);
        if rows > FEW_ROWS {
            assert_eq!(plain.bytes(), packed.bytes(), "{}", entry.spec.id);
        }
        for index in lz_core::tensor::Indices::new(plain.shape()) {
            let (plain, packed) = (plain.view().at(&index), packed.view().at(&index));
            let same = plain == packed || (plain - packed).abs() <= 1e-4 * (1.0 + plain.abs());
            assert!(same, "{}: {index:?} is {packed}, but should be {plain}", entry.spec.id);
        }
    }
}

#[test]
fn packed_weights_do_not_change_a_linear_layer() {
    // One to many blocks of rows, and of K.
    for [m, n, k] in [
        [1, 70, 40],
        [1, 1100, 600],
        [1, 500, 1100],
        [2, 70, 40],
        [2, 500, 1100],
        [2, 1100, 600],
        [7, 50, 33],
        [9, 48, 16],
        [12, 130, 129],
        [33, 97, 400],
        [250, 33, 800],
        [300, 500, 64],
        [139, 49, 3100],
        [530, 50, 520],
    ] {
        let (mut x, w, b) = (floats(1, (m * k) as usize), floats(2, (n * k) as usize), floats(3, n as usize));
        for activation in 0..5 {
            let inputs = [Some(view(&x, &[m, k])), Some(view(&w, &[n, k])), Some(view(&b, &[n]))];
            check_packed("mlp.linear", &inputs, &[activation], m, n);
        }
        // Sums that overflow on the way.
        (x[0], x[1], x[2]) = (f32::MAX, f32::MAX, f32::MAX);
        let inputs = [Some(view(&x, &[m, k])), Some(view(&w, &[n, k])), None];
        check_packed("mlp.linear", &inputs, &[0], m, n);
    }
}

#[test]
fn packed_weights_do_not_change_a_gated_block() {
    for [m, i, h, o] in [
        [1, 40, 33, 8],
        [1, 600, 900, 300],
        [2, 60, 900, 300],
        [3, 16, 33, 8],
        [9, 16, 33, 8],
        [40, 100, 130, 70],
        [270, 64, 50, 49],
    ] {
        let (mut x, gate) = (floats(1, (m * i) as usize), floats(2, (h * i) as usize));
        let (up, down) = (floats(3, (h * i) as usize), floats(4, (o * h) as usize));
        for large in [false, true] {
            if large {
                x[0] = 1e30;
            }
            let inputs = [view(&x, &[m, i]), view(&gate, &[h, i]), view(&up, &[h, i]), view(&down, &[o, h])];
            check_packed("mlp.fused", &inputs.map(Some), &[2], m, o);
        }
    }
}
