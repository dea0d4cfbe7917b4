//! Dynamic operations: schemas read at run time, called with dynamic arguments, selected like generated ones.

use std::any::Any;

use lz_core::device::Platform;
use lz_core::expr::Value;
use lz_core::{
    Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OutArg, ReasonCode, Run, Tensor, TensorView,
};
use lz_engine::Engine;
use lz_engine::dynamic::{self, Output};
use lz_ops::tokenizer::Tokenizer;
use lz_ops::{TOKENIZE_ENCODE, TokenizeEncode, tokenize_encode};

const SCALE: &str = "
operation: demo.scale
version: 1
summary: Each element times a factor.
doc: |
  output = x * factor
axes:
  dims: { role: batch, pack: true, select: { bucket: [16] }, fuzz: 0..4 }
types:
  T: [f32]
inputs:
  x: { shape: [dims...], dtype: T }
params:
  factor: { type: f32, default: 2 }
outputs:
  output: { shape: [dims...], dtype: T }
equivalence:
  close: { f32: [1e-6, 1e-6] }
workloads:
  small: { dims: [4], T: f32 }
";

struct Scale;

impl Kernel for Scale {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        _run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        let (Some(x), Arg::Value(Value::Float(factor)), OutArg::Tensor(output)) =
            (args[0].tensor(), &args[1], &mut outputs[0])
        else {
            return Err(KernelError::failed("unexpected arguments"));
        };
        let x = x.as_slice::<f32>().ok_or_else(|| KernelError::failed("not dense"))?;
        let output = output.as_slice_mut::<f32>().ok_or_else(|| KernelError::failed("not dense"))?;
        for (output, x) in output.iter_mut().zip(x) {
            *output = x * *factor as f32;
        }
        Ok(())
    }
}

#[test]
fn operation_read_at_run_time_is_validated_selected_and_run() {
    let operation = dynamic::read_operation("scale.yaml", SCALE).unwrap();
    let engine = Engine::new();
    let spec = KernelSpec::new("demo.scale.plain", "demo.scale", "demo", "1", Platform::Cpu);
    engine.register([KernelEntry::new(spec, Scale).of(operation)]).unwrap();
    let x = [1.0f32, 2.0, 3.0, 4.0];
    let mut args = [Arg::Tensor(TensorView::from_slice(&x, &[2, 2]).unwrap()), Arg::Absent];
    let results = dynamic::call(&engine, operation, &mut args).unwrap();
    let Output::Tensor(output) = &results[0] else { panic!("a tensor was promised") };
    assert_eq!(output.shape(), [2, 2]);
    assert_eq!(output.view().as_slice::<f32>().unwrap(), [2.0, 4.0, 6.0, 8.0]);

    let wrong = [1i32; 2];
    let mut args =
        [Arg::Tensor(TensorView::from_slice(&wrong, &[2]).unwrap()), Arg::Value(Value::Bool(true))];
    let error = dynamic::call(&engine, operation, &mut args).unwrap_err();
    assert!(error.has(ReasonCode::DtypeUnsupported) && error.has(ReasonCode::ParamType), "{error}");
}

#[test]
fn invalid_schema_is_rejected_with_diagnostics() {
    let error = dynamic::read_operation(
        "scale.yaml",
        &SCALE.replace("[dims...], dtype: T }\nparams", "[dim...], dtype: T }\nparams"),
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("scale.yaml") && text.contains("did you mean `dims`"), "{text}");
}

#[test]
fn dynamic_call_of_a_generated_operation_gives_the_typed_result() {
    let engine = lz_engine::Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let x = [1.0f32, -2.0, 3.0, 0.5];
    let view = TensorView::from_slice(&x, &[2, 2]).unwrap();
    let typed = lz_ops::norm_rms(&engine, lz_ops::NormRms::new(view).eps(0.5)).unwrap();
    let mut args = [Arg::Tensor(view), Arg::Absent, Arg::Value(Value::Float(0.5)), Arg::Absent];
    let results = dynamic::call(&engine, &lz_ops::NORM_RMS, &mut args).unwrap();
    let Output::Tensor(output) = &results[0] else { panic!("a tensor was promised") };
    assert_eq!(output.bytes(), typed.output.bytes());
}

#[test]
fn generated_context_fields_match_the_schema() {
    for operation in lz_ops::OPERATIONS {
        assert_eq!(
            dynamic::fields(operation.schema()).unwrap(),
            operation.fields.as_ref(),
            "{}",
            operation.name
        );
    }
}

/// Encodes every text to tokens of a shape that the schema does not have.
struct WrongShape;

impl Kernel for WrongShape {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], outputs: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        let OutArg::Dynamic(tokens) = &mut outputs[0] else { return Err(KernelError::failed("no tokens")) };
        **tokens = Tensor::zeros(&[3, 1], DType::I32).ok();
        Ok(())
    }
}

#[test]
fn outputs_of_a_wrong_shape_are_a_failure_of_the_kernel() {
    let definition = include_bytes!("data/byte_level_bpe.json");
    let tokenizer = Tokenizer::from_json(definition).unwrap();
    let reference = Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let encode = |engine: &Engine| tokenize_encode(engine, TokenizeEncode::new(&["hello"], &tokenizer));
    let expected = encode(&reference).unwrap();

    let engine = Engine::with_kernels(lz_ops::reference_kernels::kernels()).unwrap();
    let spec = KernelSpec::new("wrong.encode", "tokenize.encode", "wrong", "1", Platform::Cpu).priority(99);
    // Without `of`: the registry finds the operation by its name.
    engine.register([KernelEntry::new(spec, WrongShape)]).unwrap();
    let found = encode(&engine).expect("another kernel encodes");
    assert_eq!(found.tokens.bytes(), expected.tokens.bytes());
    assert_eq!(found.tokens.shape(), expected.tokens.shape());

    engine.lock("tokenize.encode", "wrong.encode").unwrap();
    engine
        .configure([("fallback_enabled".to_owned(), lz_engine::policy::layer::SettingInput::Bool(false))])
        .unwrap();
    let error = encode(&engine).unwrap_err();
    assert!(error.has(ReasonCode::KernelFailed) && error.to_string().contains("tokens"), "{error}");
    let mut args = [
        Arg::Text(&["hello"]),
        Arg::Handle(&tokenizer),
        Arg::Value(Value::Bool(true)),
        Arg::Value(Value::Bool(false)),
    ];
    let error = dynamic::call(&engine, &TOKENIZE_ENCODE, &mut args).unwrap_err();
    assert!(error.has(ReasonCode::KernelFailed), "{error}");
}
