use lz_core::expr::Value;
use lz_core::run::{Run, Scratch};
use lz_core::{Arg, KernelError, OutArg, ReasonCode, Tensor, TensorView};
use lz_schema::model::ParamType;

use super::*;
use crate::functions::*;

fn names_of<C: Case>(operation: &OperationInfo, param: &str) {
    let schema = operation.schema();
    let found = schema.params.iter().find(|candidate| candidate.name == param).unwrap();
    let ParamType::Enum(cases) = &found.ty else { panic!("{param} is not an enum") };
    assert_eq!(cases, C::NAMES, "{}.{param}", operation.name);
    assert_eq!(C::ALL.len(), C::NAMES.len());
}

#[test]
fn enums_have_the_cases_of_the_schemas() {
    names_of::<UnaryFunction>(&UNARY, "function");
    names_of::<ActivationFunction>(&ACTIVATION, "function");
    names_of::<UnaryIntFunction>(&UNARY_INT, "function");
    names_of::<TestFunction>(&TEST, "function");
    names_of::<BinaryFunction>(&BINARY, "function");
    names_of::<BinaryFunction>(&BINARY_SCALAR, "function");
    names_of::<BinaryIntFunction>(&BINARY_INT, "function");
    names_of::<BinaryIntFunction>(&BINARY_INT_SCALAR, "function");
    names_of::<CompareFunction>(&COMPARE, "function");
    names_of::<CompareFunction>(&COMPARE_SCALAR, "function");
    names_of::<ReduceFunction>(&REDUCE, "function");
    names_of::<ReduceIntFunction>(&REDUCE_INT, "function");
    names_of::<ArgReduceFunction>(&ARG_REDUCE, "function");
    names_of::<ScatterReduction>(&SCATTER, "reduction");
    names_of::<ScatterReduction>(&SCATTER_ELEMENTS, "reduction");
    names_of::<PoolFunction>(&POOL2D, "function");
    names_of::<ConvActivation>(&CONV2D, "activation");
    names_of::<TargetDtype>(&CAST, "to");
    for case in TargetDtype::ALL {
        assert_eq!(TargetDtype::of(case.dtype()), Some(*case));
    }
}

#[test]
fn every_file_is_a_primitive_with_a_reference() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../schemas/primitives");
    let mut files: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".yaml", ""))
        .collect();
    files.sort();
    let names: Vec<String> = all().iter().map(|operation| operation.name.replace("primitive.", "")).collect();
    assert_eq!(names, files);
    let references = reference_kernels();
    assert_eq!(references.len(), all().len());
    for (entry, operation) in references.iter().zip(all()) {
        assert_eq!(entry.spec.operation, operation.name);
        assert!(entry.spec.reference);
    }
}

/// Checks a call, fills in defaults, allocates the outputs and runs the reference.
fn run(operation: &'static OperationInfo, mut args: Vec<Arg<'_>>) -> Result<Vec<Tensor>, KernelError> {
    let schema = operation.schema();
    args.resize_with(schema.inputs.len() + schema.params.len(), || Arg::Absent);
    let bound = lz_core::check::check_call(schema, &args, None).unwrap_or_else(|error| panic!("{error}"));
    for (arg, value) in args[schema.inputs.len()..].iter_mut().zip(&bound.values[schema.axes.len()..]) {
        *arg = Arg::Value(*value);
    }
    let specs = lz_core::check::infer_outputs(schema, &bound).unwrap();
    let mut tensors: Vec<Tensor> = specs
        .into_iter()
        .map(|spec| match spec {
            lz_core::check::OutputSpec::Tensor(sizes, dtype) => Tensor::zeros(&sizes, dtype).unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    let mut outputs: Vec<OutArg<'_>> =
        tensors.iter_mut().map(|tensor| OutArg::Tensor(tensor.view_mut())).collect();
    let entry = reference_kernels().into_iter().find(|entry| entry.spec.operation == operation.name).unwrap();
    entry.kernel.run(&mut args, &mut outputs, &mut Run::unbounded(&mut Scratch::default()))?;
    drop(outputs);
    Ok(tensors)
}

fn f32s(data: &[f32]) -> Arg<'_> {
    Arg::Tensor(TensorView::from_slice(data, &[data.len() as i64]).unwrap())
}

fn f32s_in<'a>(data: &'a [f32], shape: &[i64]) -> Arg<'a> {
    Arg::Tensor(TensorView::from_slice(data, shape).unwrap())
}

fn i64s(data: &[i64]) -> Arg<'_> {
    Arg::Tensor(TensorView::from_slice(data, &[data.len() as i64]).unwrap())
}

fn case(case: impl Case) -> Arg<'static> {
    Arg::Value(case.value())
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.view().as_slice::<f32>().unwrap().to_vec()
}

fn ints(tensor: &Tensor) -> Vec<i64> {
    tensor.view().as_slice::<i64>().unwrap().to_vec()
}

#[test]
fn modulo_and_floor_division_follow_torch() {
    let inf = f32::INFINITY;
    let a = [5.0, -5.0, 5.0, -5.0, 1.0, inf, 5.0];
    let b = [3.0, 3.0, -3.0, inf, inf, 2.0, 0.0];
    let rest = floats(&run(&BINARY, vec![f32s(&a), f32s(&b), case(BinaryFunction::Mod)]).unwrap()[0]);
    assert_eq!(rest[..5], [2.0, 1.0, -1.0, inf, 1.0]);
    assert!(rest[5].is_nan() && rest[6].is_nan());
    let floor =
        floats(&run(&BINARY, vec![f32s(&a), f32s(&b), case(BinaryFunction::FloorDivide)]).unwrap()[0]);
    assert_eq!(floor[..5], [1.0, -2.0, -2.0, -1.0, 0.0]);
    assert!(floor[5].is_nan());
    assert_eq!(floor[6], inf);

    let (a, b) = ([5, -5, 5, -5, i64::MIN], [3, 3, -3, -3, -1]);
    let int = |function| ints(&run(&BINARY_INT, vec![i64s(&a), i64s(&b), case(function)]).unwrap()[0]);
    assert_eq!(int(BinaryIntFunction::Mod), [2, 1, -1, -2, 0]);
    assert_eq!(int(BinaryIntFunction::Fmod), [2, -2, 2, -2, 0]);
    assert_eq!(int(BinaryIntFunction::FloorDivide), [1, -2, -2, 1, i64::MIN]);
    assert_eq!(int(BinaryIntFunction::TruncDivide), [1, -1, -1, 1, i64::MIN]);
}

#[test]
fn integer_division_by_zero_is_an_error() {
    for function in [
        BinaryIntFunction::FloorDivide,
        BinaryIntFunction::TruncDivide,
        BinaryIntFunction::Mod,
        BinaryIntFunction::Fmod,
    ] {
        let error = run(&BINARY_INT, vec![i64s(&[1, 2]), i64s(&[1, 0]), case(function)]).unwrap_err();
        assert_eq!(error.reason.code, ReasonCode::ValueOutOfRange);
    }
}

#[test]
fn shifts_and_powers_of_integers_follow_torch() {
    let shift = |function, a: &[i64], b: &[i64]| {
        ints(&run(&BINARY_INT, vec![i64s(a), i64s(b), case(function)]).unwrap()[0])
    };
    assert_eq!(shift(BinaryIntFunction::ShiftLeft, &[1, 1, -8, -8], &[64, -1, 70, 1]), [0, 0, 0, -16]);
    assert_eq!(shift(BinaryIntFunction::ShiftRight, &[8, 8, -8, -8], &[64, -1, 70, 1]), [0, 0, -1, -4]);
    assert_eq!(
        shift(BinaryIntFunction::Pow, &[2, 1, -1, -1, 0, 3], &[-1, -2, -3, -2, 0, 4]),
        [0, 1, -1, 1, 1, 81]
    );
}

#[test]
fn casts_follow_torch() {
    let x = [2.7, -2.7, 300.0, -1.0, f32::NAN, f32::INFINITY, 3e10];
    let cast = |to| run(&CAST, vec![f32s(&x), case(to)]).unwrap().remove(0);
    let i32s = cast(TargetDtype::I32);
    let low = i32::MIN;
    assert_eq!(i32s.view().as_slice::<i32>().unwrap(), [2, -2, 300, -1, low, low, low]);
    assert_eq!(cast(TargetDtype::U8).bytes()[..4], [2, 254, 44, 255]);
    assert_eq!(cast(TargetDtype::Bool).bytes(), [1; 7]);
    let wide = run(&CAST, vec![f32s(&[3e10, -3e10, 1e30]), case(TargetDtype::I64)]).unwrap();
    assert_eq!(ints(&wide[0]), [30_000_001_024, -30_000_001_024, i64::MIN]);
    let narrow = run(&CAST, vec![i64s(&[300, -1]), case(TargetDtype::I8)]).unwrap();
    assert_eq!(narrow[0].bytes(), [44, 255]);
}

#[test]
fn comparisons_of_large_integers_with_floats_are_exact() {
    let x = [9_007_199_254_740_993, i64::MAX, i64::MIN, 2];
    let compare = |function, value: f64| {
        let args = vec![i64s(&x), case(function), Arg::Value(Value::Float(value))];
        run(&COMPARE_SCALAR, args).unwrap()[0].bytes().to_vec()
    };
    assert_eq!(compare(CompareFunction::Eq, 9_007_199_254_740_992.0), [0, 0, 0, 0]);
    assert_eq!(compare(CompareFunction::Gt, 9_007_199_254_740_992.0), [1, 1, 0, 0]);
    assert_eq!(compare(CompareFunction::Lt, 1e30), [1, 1, 1, 1]);
    assert_eq!(compare(CompareFunction::Ge, 2.5), [1, 1, 0, 0]);
    assert_eq!(compare(CompareFunction::Ne, f64::NAN), [1, 1, 1, 1]);
}

#[test]
fn nan_is_found_by_maxima_and_minima() {
    let x = [1.0, f32::NAN, 3.0, f32::NAN];
    let arg = |function, last| {
        ints(&run(&ARG_REDUCE, vec![f32s(&x), case(function), Arg::Value(Value::Bool(last))]).unwrap()[0])
    };
    assert_eq!(arg(ArgReduceFunction::Argmax, false), [1]);
    assert_eq!(arg(ArgReduceFunction::Argmax, true), [3]);
    assert_eq!(arg(ArgReduceFunction::Argmin, false), [1]);
    for function in [ReduceFunction::Max, ReduceFunction::Min] {
        assert!(floats(&run(&REDUCE, vec![f32s(&x), case(function)]).unwrap()[0])[0].is_nan());
    }
}

#[test]
fn topk_takes_nan_first_and_lower_indices_of_equal_elements() {
    let x = [1.0, f32::NAN, 3.0, f32::INFINITY, 3.0];
    let found = run(&TOPK, vec![f32s(&x), Arg::Value(Value::Int(4))]).unwrap();
    assert_eq!(ints(&found[1]), [1, 3, 2, 4]);
    let smallest = vec![f32s(&x), Arg::Value(Value::Int(2)), Arg::Value(Value::Bool(false))];
    let found = run(&TOPK, smallest).unwrap();
    assert_eq!((floats(&found[0]), ints(&found[1])), (vec![1.0, 3.0], vec![0, 2]));
}

#[test]
fn indices_count_from_the_end_and_out_of_range_is_rejected() {
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let found = run(&GATHER, vec![f32s_in(&x, &[1, 3, 2]), i64s(&[-1, 0])]).unwrap();
    assert_eq!(floats(&found[0]), [5.0, 6.0, 1.0, 2.0]);
    let updates = [10.0, 20.0, 30.0, 40.0];
    let args = vec![
        f32s_in(&x, &[1, 3, 2]),
        i64s(&[0, 0]),
        f32s_in(&updates, &[1, 2, 2]),
        case(ScatterReduction::Add),
    ];
    assert_eq!(floats(&run(&SCATTER, args).unwrap()[0]), [41.0, 62.0, 3.0, 4.0, 5.0, 6.0]);
    let args = [f32s_in(&x, &[1, 3, 2]), i64s(&[3])];
    let error = lz_core::check::check_call(GATHER.schema(), &args, None).unwrap_err();
    assert!(error.has(ReasonCode::ValueOutOfRange), "{error}");
}

#[test]
fn averages_count_padding_as_torch_does() {
    let x: Vec<f32> = (0u8..9).map(f32::from).collect();
    let int = |value| Arg::Value(Value::Int(value));
    // kernel 2, stride 2, padding 1 and ceiling mode, which adds nothing here.
    let mut args = vec![f32s_in(&x, &[1, 1, 3, 3]), case(PoolFunction::Avg)];
    args.extend([2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0].map(int));
    assert_eq!(floats(&run(&POOL2D, args).unwrap()[0]), [0.0, 0.75, 2.25, 6.0]);
    // Without padding, ceiling mode adds a row and a column that are not counted.
    let mut args = vec![f32s_in(&x, &[1, 1, 3, 3]), case(PoolFunction::Avg)];
    args.extend([2, 2, 2, 2, 0, 0, 1, 1, 1, 1, 1, 1].map(int));
    assert_eq!(floats(&run(&POOL2D, args).unwrap()[0]), [2.0, 3.5, 6.5, 8.0]);
}

#[test]
fn a_grouped_convolution_of_ones_counts_its_window() {
    let (x, weight) = (vec![1.0; 2 * 4 * 4], vec![1.0; 2 * 3 * 3]);
    let args = |residual| {
        let mut args =
            vec![f32s_in(&x, &[1, 2, 4, 4]), f32s_in(&weight, &[2, 1, 3, 3]), Arg::Absent, residual];
        args.extend([2, 2, 1, 1, 1, 1, 1, 1, 2].map(|value| Arg::Value(Value::Int(value))));
        args
    };
    let counts = [4.0, 6.0, 6.0, 9.0, 4.0, 6.0, 6.0, 9.0];
    assert_eq!(floats(&run(&CONV2D, args(Arg::Absent)).unwrap()[0]), counts);
    // A residual is added before the activation.
    let residual = [0.0, -6.5, 1.0, 0.0, 0.0, 0.0, 0.0, -10.0];
    let mut args = args(f32s_in(&residual, &[1, 2, 2, 2]));
    args.push(case(ConvActivation::Relu));
    assert_eq!(floats(&run(&CONV2D, args).unwrap()[0]), [4.0, 0.0, 7.0, 9.0, 4.0, 6.0, 6.0, 0.0]);
}

#[test]
fn a_range_continues_its_first_element() {
    let args = vec![f32s(&[1.0]), Arg::Value(Value::Int(4)), Arg::Value(Value::Float(-0.5))];
    assert_eq!(floats(&run(&ARANGE, args).unwrap()[0]), [1.0, 0.5, 0.0, -0.5]);
    let args = vec![i64s(&[i64::MAX]), Arg::Value(Value::Int(2))];
    assert_eq!(ints(&run(&ARANGE, args).unwrap()[0]), [i64::MAX, i64::MIN]);
}

#[test]
fn arguments_that_do_not_fit_are_errors_before_anything_is_written() {
    for entry in reference_kernels() {
        let mut args: Vec<Arg<'_>> = Vec::new();
        let error =
            entry.kernel.run(&mut args, &mut [], &mut Run::unbounded(&mut Scratch::default())).unwrap_err();
        assert!(error.untouched, "{}: {error}", entry.spec.id);
    }
}
