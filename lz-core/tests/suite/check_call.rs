//! What the complete check says about wrong calls: every rule of the schema language, each with the sentence that the caller reads.
//!
//! A case changes one thing of a valid call. The snapshot has one block per case, so that a rule that is no longer checked, or is
//! checked where it should not be, changes the snapshot.

use std::sync::OnceLock;

use lz_core::args::{Arg, Handle, OutArg};
use lz_core::check::{self, OutputSpec};
use lz_core::device::Platform;
use lz_core::dynamic;
use lz_core::error::Error;
use lz_core::operation::OperationInfo;
use lz_core::run::{Run, Scratch};
use lz_core::tensor::{Device, Dims, Layout, Tensor, TensorMut, TensorView};
use lz_core::{DType, Kernel, KernelEntry, KernelError, KernelSpec, ReasonCode};
use lz_schema::expr::Value;

const SCHEMA: &str = "
operation: demo.checked
version: 1
summary: An operation with every kind of rule.
doc: It is only checked, never run.
axes:
  rows: { role: batch, pack: true, fuzz: 0..3, doc: Rows. }
  width: { role: feature, fuzz: [2, 4], doc: Width. }
  groups: { role: count, fuzz: [1, 2], doc: Groups. }
  pair: { value: 2, doc: Always two. }
  found: { role: count, dynamic: true, doc: As many as the kernel finds. }
  hints: { role: count, fuzz: [1, 2], doc: Hints. }
types:
  T: [f32, f16]
inputs:
  x: { shape: [rows..., width], dtype: T, doc: The input. }
  starts: { shape: [groups + 1], dtype: i32, device: host, values: { indptr_of: width }, doc: Where groups start. }
  twin: { shape: [rows..., width], dtype: T, optional: true, doc: As x. }
  bias: { shape: [groups, width], dtype: f32, optional: true, broadcast: true, doc: A bias. }
  halves: { shape: [width // 2, pair, 4], dtype: f32, optional: true, doc: Halves. }
  after: { shape: [rows..., width * 2], dtype: f32, optional: true, doc: Twice the width. }
  state: { shape: [width], dtype: f32, optional: true, access: read_write, doc: State. }
  other: { shape: [width], dtype: f32, optional: true, access: read_write, doc: More state. }
  dense: { shape: [width, width], dtype: f32, optional: true, contiguous: all, doc: Dense. }
  last: { shape: [width, width], dtype: f32, optional: true, contiguous: last, device: any, doc: Dense rows. }
  index: { shape: [width], dtype: i64, optional: true, values: { index_into: width }, doc: Indices. }
  share: { shape: [width], dtype: f32, optional: true, values: { between: [0.0, 1.0] }, doc: Shares. }
  level: { shape: [width], dtype: i32, optional: true, values: { between: [\"0 - 1\", groups] }, doc: Levels. }
  hint: { shape: [hints], dtype: i32, optional: true, doc: Hints. }
  parts: { shape: [groups, pair], dtype: i32, optional: true, values: { partition_of: width }, doc: Parts. }
params:
  scale: { type: f32, default: 1 / width, range: \"> 0\", doc: A factor. }
  order: { type: enum, values: [UP, DOWN], default: UP, doc: The order. }
  window: { type: int, default: \"width if scale > 0.0 else 0\", range: \">= -1\", doc: A window. }
  exact: { type: f64, default: 0.5, range: \">= 0 and < 1\", doc: A fraction. }
  both: { type: bool, default: false, doc: Whether the second output exists. }
  seed: { type: int, doc: Without a default. }
outputs:
  out: { shape: { by: order, UP: [rows..., width], DOWN: [width, rows...] }, dtype: T, doc: The result. }
  extra: { shape: [groups], dtype: i32, when: both, doc: More. }
  list: { shape: [found, pair], dtype: { by: order, UP: i32, DOWN: i64 }, doc: What was found. }
constraints:
  - { check: \"width % groups == 0\", code: CONSTRAINT_FAILED, message: \"width must be a multiple of groups\" }
  - { check: \"seed >= 0 or order == DOWN\", code: PARAM_OUT_OF_RANGE, message: \"only DOWN takes a negative seed\" }
  - { check: \"hints > 0 or seed < 100\", code: CONSTRAINT_FAILED, message: \"a large seed needs hints\" }
equivalence: { close: { f32: [1e-5, 1e-5], f16: [1e-3, 1e-3] } }
workloads:
  one: { rows: [2], width: 4, groups: 2, T: f32, seed: 1 }
";

fn operation() -> &'static OperationInfo {
    static OPERATION: OnceLock<&'static OperationInfo> = OnceLock::new();
    OPERATION.get_or_init(|| {
        dynamic::read_operation("demo/checked.yaml", SCHEMA).unwrap_or_else(|error| panic!("{error}"))
    })
}

fn arg_of(name: &str) -> usize {
    let schema = operation().schema();
    let input = schema.inputs.iter().position(|input| input.name == name);
    let param =
        || schema.params.iter().position(|param| param.name == name).map(|at| at + schema.inputs.len());
    input.or_else(param).unwrap_or_else(|| panic!("no argument {name}"))
}

const CUDA: Device = Device { platform: Platform::Cuda, index: 0 };

/// Memory that lives as long as the process, so that arguments borrow nothing.
fn memory(bytes: usize) -> &'static mut [u64] {
    vec![0; bytes.div_ceil(8).max(1)].leak()
}

/// A tensor of zeros with a layout that a case has changed.
fn with_layout(shape: &[i64], dtype: DType, change: impl FnOnce(&mut Layout)) -> TensorMut<'static> {
    let mut layout = Layout::contiguous(shape, dtype).expect("a layout");
    change(&mut layout);
    // SAFETY: enough memory for every layout below; those that reach further are only described, never read.
    unsafe { TensorMut::from_raw(memory(4096).as_mut_ptr().cast(), layout) }
}

fn zeros(shape: &[i64], dtype: DType) -> Arg<'static> {
    read(with_layout(shape, dtype, |_| {}))
}

fn read(tensor: TensorMut<'static>) -> Arg<'static> {
    let layout = *tensor.layout();
    let mut tensor = tensor;
    // SAFETY: the memory is leaked, and nothing writes to it.
    Arg::Tensor(unsafe { TensorView::from_raw(tensor.as_mut_ptr(), layout) })
}

fn ints(values: &[i32], shape: &[i64]) -> Arg<'static> {
    Arg::Tensor(TensorView::from_slice(values.to_vec().leak(), shape).expect("a layout"))
}

fn floats(values: &[f32]) -> Arg<'static> {
    Arg::Tensor(TensorView::from_slice(values.to_vec().leak(), &[values.len() as i64]).expect("a layout"))
}

/// The valid call: rows = [3], width = 4, groups = 2, and nothing optional.
fn valid() -> Vec<Arg<'static>> {
    let schema = operation().schema();
    let mut args: Vec<Arg<'static>> = Vec::new();
    args.resize_with(schema.inputs.len() + schema.params.len(), Arg::default);
    args[arg_of("x")] = zeros(&[3, 4], DType::F32);
    args[arg_of("starts")] = ints(&[0, 1, 4], &[3]);
    args[arg_of("seed")] = Arg::Value(Value::Int(7));
    args
}

fn problems(args: &[Arg<'_>], outputs: Option<&[OutArg<'_>]>) -> String {
    match check::check_call(operation().schema(), args, outputs) {
        Ok(_) => "valid".to_owned(),
        Err(Error::Validation { reasons, .. }) => {
            let line = |reason: &lz_core::Reason| {
                let field = |name: &str, value: &Option<String>| {
                    value.as_ref().map(|value| format!(" {name}={value}")).unwrap_or_default()
                };
                let fields = [
                    ("argument", &reason.argument),
                    ("axis", &reason.axis),
                    ("required", &reason.required),
                    ("found", &reason.found),
                ];
                let fields: String = fields.map(|(name, value)| field(name, value)).concat();
                format!("{reason}\n     {}", fields.trim_start())
            };
            reasons.iter().map(line).collect::<Vec<_>>().join("\n  ")
        }
        Err(error) => panic!("{error}"),
    }
}

struct NoTokenizer;

impl Handle for NoTokenizer {
    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// What a case changes of the valid call, with its name.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Vec<Arg<'static>>));

/// Runs every case on a valid call and returns one block per case.
fn table(cases: &[Case<'_>]) -> String {
    let block = |(name, change): &Case<'_>| {
        let mut args = valid();
        change(&mut args);
        format!("{name}\n  {}", problems(&args, None))
    };
    cases.iter().map(block).collect::<Vec<_>>().join("\n")
}

fn set(name: &'static str, arg: impl Fn() -> Arg<'static>) -> impl Fn(&mut Vec<Arg<'static>>) {
    move |args| args[arg_of(name)] = arg()
}

#[test]
fn kinds_and_dtypes_of_inputs() {
    let found = table(&[
        ("nothing wrong", &|_| {}),
        ("too few arguments", &|args| args.truncate(19)),
        ("a required input is missing", &set("x", || Arg::Absent)),
        ("text for a tensor", &set("x", || Arg::Text(&["a"]))),
        ("a value for a tensor", &set("x", || Arg::Value(Value::Int(1)))),
        ("a handle for a tensor", &set("twin", || Arg::Handle(&NoTokenizer))),
        ("a dtype that T may not be", &set("x", || zeros(&[3, 4], DType::I32))),
        ("f16 is another T", &set("x", || zeros(&[3, 4], DType::F16))),
        ("two dtypes for T", &set("twin", || zeros(&[3, 4], DType::F16))),
        ("one dtype for T", &set("twin", || zeros(&[3, 4], DType::F32))),
        ("a fixed dtype", &set("starts", || zeros(&[3], DType::I64))),
        ("a read-only tensor to be written", &set("state", || zeros(&[4], DType::F32))),
        ("a tensor to be written", &set("state", || Arg::TensorMut(with_layout(&[4], DType::F32, |_| {})))),
        (
            "a writable tensor to be read",
            &set("twin", || Arg::TensorMut(with_layout(&[3, 4], DType::F32, |_| {}))),
        ),
        (
            "an invalid layout",
            &set("x", || {
                read(with_layout(&[3, 4], DType::F32, |layout| {
                    layout.shape = Dims::new(&[3, -4]).expect("two sizes");
                }))
            }),
        ),
        (
            "a misaligned address",
            &set("x", || {
                let layout = Layout::contiguous(&[3, 4], DType::F32).expect("a layout");
                let odd = std::ptr::without_provenance(0x1002);
                // SAFETY: never read; the check refuses it.
                Arg::Tensor(unsafe { TensorView::from_raw(odd, layout) })
            }),
        ),
        (
            "a null pointer",
            &set("x", || {
                let layout = Layout::contiguous(&[3, 4], DType::F32).expect("a layout");
                // SAFETY: never read; the check refuses it.
                Arg::Tensor(unsafe { TensorView::from_raw(std::ptr::null(), layout) })
            }),
        ),
        ("a null pointer without elements", &|args| {
            let layout = Layout::contiguous(&[0, 4], DType::F32).expect("a layout");
            // SAFETY: it has no elements.
            args[arg_of("x")] = Arg::Tensor(unsafe { TensorView::from_raw(std::ptr::null(), layout) });
        }),
    ]);
    insta::assert_snapshot!(found);
}

#[test]
fn shapes_of_inputs() {
    let f32s = |shape: &'static [i64]| move || zeros(shape, DType::F32);
    let found = table(&[
        ("a pack of no dimensions", &set("x", f32s(&[4]))),
        ("a pack of three dimensions", &set("x", f32s(&[2, 1, 3, 4]))),
        ("no dimension for the width", &set("x", f32s(&[]))),
        ("the pack differs", &set("twin", f32s(&[2, 4]))),
        ("the pack has another rank", &set("twin", f32s(&[3, 1, 4]))),
        ("the width differs", &set("twin", f32s(&[3, 5]))),
        ("a dimension too many", &set("state", || Arg::TensorMut(with_layout(&[4, 1], DType::F32, |_| {})))),
        ("no dimension", &set("state", || Arg::TensorMut(with_layout(&[], DType::F32, |_| {})))),
        ("below the offset", &set("starts", || ints(&[], &[0]))),
        ("at the offset", &set("starts", || ints(&[0], &[1]))),
        ("broadcast of a row", &set("bias", f32s(&[4]))),
        ("broadcast of ones", &set("bias", f32s(&[1, 1]))),
        ("broadcast of nothing", &set("bias", f32s(&[]))),
        ("full broadcast", &set("bias", f32s(&[2, 4]))),
        ("a wrong size in a row", &set("bias", f32s(&[3]))),
        ("two wrong sizes", &set("bias", f32s(&[3, 2]))),
        ("more dimensions than the broadcast", &set("bias", f32s(&[1, 2, 4]))),
        ("computed sizes", &set("halves", f32s(&[2, 2, 4]))),
        ("a wrong computed size", &set("halves", f32s(&[3, 2, 4]))),
        ("a wrong fixed axis", &set("halves", f32s(&[2, 3, 4]))),
        ("a wrong fixed size", &set("halves", f32s(&[2, 2, 5]))),
        ("computed size after a pack", &set("after", f32s(&[3, 8]))),
        ("wrong computed size after a pack", &set("after", f32s(&[3, 7]))),
        ("wrong computed size after a longer pack", &|args| {
            args[arg_of("x")] = zeros(&[2, 3, 4], DType::F32);
            args[arg_of("after")] = zeros(&[2, 3, 9], DType::F32);
        }),
        ("wrong computed size after an empty pack", &|args| {
            args[arg_of("x")] = zeros(&[4], DType::F32);
            args[arg_of("after")] = zeros(&[9], DType::F32);
        }),
    ]);
    insta::assert_snapshot!(found);
}

#[test]
fn params_and_constraints() {
    let value = |value: Value| move || Arg::Value(value);
    let found = table(&[
        ("a required param is missing", &set("seed", || Arg::Absent)),
        ("a tensor for a param", &set("seed", || zeros(&[1], DType::F32))),
        ("a float for an int", &set("seed", value(Value::Float(1.0)))),
        ("an int for a float", &set("scale", value(Value::Int(2)))),
        ("an int for a double", &set("exact", value(Value::Int(0)))),
        ("a bool for a float", &set("scale", value(Value::Bool(true)))),
        ("an int for a bool", &set("both", value(Value::Int(1)))),
        ("a case for a bool", &set("both", value(Value::Enum(0)))),
        ("an int for a case", &set("order", value(Value::Int(0)))),
        ("the last case", &set("order", value(Value::Enum(1)))),
        ("one case too far", &set("order", value(Value::Enum(2)))),
        ("out of an open range", &set("scale", value(Value::Float(0.0)))),
        ("out of a closed range", &set("window", value(Value::Int(-2)))),
        ("at the end of a closed range", &set("window", value(Value::Int(-1)))),
        ("at the open end of a double range", &set("exact", value(Value::Float(1.0)))),
        ("below a double range", &set("exact", value(Value::Float(-0.25)))),
        ("NaN is in no range", &set("exact", value(Value::Float(f64::NAN)))),
        ("a default that cannot be computed", &|args| {
            args[arg_of("x")] = zeros(&[3, 0], DType::F32);
            args[arg_of("starts")] = ints(&[0, 0], &[2]);
        }),
        ("a constraint over axes", &|args| args[arg_of("starts")] = ints(&[0, 1, 2, 4], &[4])),
        ("a constraint that divides by zero", &|args| args[arg_of("starts")] = ints(&[0], &[1])),
        ("a constraint over params", &set("seed", value(Value::Int(-1)))),
        ("a constraint over an axis of a missing optional input", &set("seed", value(Value::Int(100)))),
        ("a constraint that an optional input satisfies", &|args| {
            args[arg_of("seed")] = Arg::Value(Value::Int(100));
            args[arg_of("hint")] = ints(&[1], &[1]);
        }),
        ("a constraint that a case satisfies", &|args| {
            args[arg_of("seed")] = Arg::Value(Value::Int(-1));
            args[arg_of("order")] = Arg::Value(Value::Enum(1));
        }),
    ]);
    insta::assert_snapshot!(found);
}

#[test]
fn memory_of_inputs() {
    let columns = |layout: &mut Layout| layout.strides = Dims::new(&[1, 4]).expect("two strides");
    let padded = |layout: &mut Layout| layout.strides = Dims::new(&[8, 1]).expect("two strides");
    let written = |shape: &[i64], change: &dyn Fn(&mut Layout)| {
        Arg::TensorMut(with_layout(shape, DType::F32, |layout| change(layout)))
    };
    // SAFETY: nothing reads or writes the memory during the check.
    let both = |from: &mut TensorMut<'static>| unsafe { (from.duplicate(), from.duplicate()) };
    let found = table(&[
        ("columns where rows are needed", &set("dense", || read(with_layout(&[4, 4], DType::F32, columns)))),
        ("padded rows where all is dense", &set("dense", || read(with_layout(&[4, 4], DType::F32, padded)))),
        ("dense", &set("dense", || zeros(&[4, 4], DType::F32))),
        ("columns where rows are dense", &set("last", || read(with_layout(&[4, 4], DType::F32, columns)))),
        ("padded rows", &set("last", || read(with_layout(&[4, 4], DType::F32, padded)))),
        (
            "another device",
            &set("twin", || read(with_layout(&[3, 4], DType::F32, |layout| layout.device = CUDA))),
        ),
        (
            "any device",
            &set("last", || read(with_layout(&[4, 4], DType::F32, |layout| layout.device = CUDA))),
        ),
        (
            "host memory is required",
            &set("starts", || read(with_layout(&[3], DType::I32, |layout| layout.device = CUDA))),
        ),
        ("all on one device", &|args| {
            args[arg_of("x")] = read(with_layout(&[3, 4], DType::F32, |layout| layout.device = CUDA));
            args[arg_of("twin")] = read(with_layout(&[3, 4], DType::F32, |layout| layout.device = CUDA));
        }),
        (
            "written elements share memory",
            &set("state", || {
                written(&[4], &|layout| {
                    layout.strides = Dims::new(&[0]).expect("one stride");
                })
            }),
        ),
        ("two written tensors share memory", &|args| {
            let (one, two) = both(&mut with_layout(&[4], DType::F32, |_| {}));
            (args[arg_of("state")], args[arg_of("other")]) = (Arg::TensorMut(one), Arg::TensorMut(two));
        }),
        ("the second written tensor shares memory with x", &|args| {
            let mut memory = with_layout(&[3, 4], DType::F32, |_| {});
            let pointer = memory.as_mut_ptr();
            args[arg_of("x")] = read(memory);
            let layout = Layout::contiguous(&[4], DType::F32).expect("a layout");
            // SAFETY: inside the memory of x, which nothing accesses during the check.
            args[arg_of("other")] =
                Arg::TensorMut(unsafe { TensorMut::from_raw(pointer.wrapping_add(16), layout) });
        }),
        ("tensors that are read may share memory", &|args| {
            let (one, two) = both(&mut with_layout(&[3, 4], DType::F32, |_| {}));
            (args[arg_of("x")], args[arg_of("twin")]) = (read(one), read(two));
        }),
    ]);
    insta::assert_snapshot!(found);
}

#[test]
fn values_of_inputs() {
    let longs = |values: &[i64]| {
        Arg::Tensor(TensorView::from_slice(values.to_vec().leak(), &[values.len() as i64]).expect("a layout"))
    };
    let found = table(&[
        ("indices", &set("index", || longs(&[0, 3, 1, 2]))),
        ("an index at the end", &set("index", || longs(&[0, 4, 1, 2]))),
        ("a negative index", &set("index", || longs(&[0, 1, -1, 2]))),
        ("shares", &set("share", || floats(&[0.0, 1.0, 0.5, 0.25]))),
        ("a share above one", &set("share", || floats(&[0.0, 1.0, 1.5, 0.25]))),
        ("levels", &set("level", || ints(&[-1, 0, 1, 2], &[4]))),
        ("a level too high", &set("level", || ints(&[-1, 0, 1, 3], &[4]))),
        ("a level too low", &set("level", || ints(&[-2, 0, 1, 2], &[4]))),
        ("it does not start at 0", &set("starts", || ints(&[1, 1, 4], &[3]))),
        ("it decreases", &set("starts", || ints(&[0, 5, 4], &[3]))),
        ("it ends elsewhere", &set("starts", || ints(&[0, 1, 3], &[3]))),
        ("equal starts", &set("starts", || ints(&[0, 4, 4], &[3]))),
        ("parts", &set("parts", || ints(&[1, 3, 4, 0], &[2, 2]))),
        ("a negative part", &set("parts", || ints(&[1, 3, 5, -1], &[2, 2]))),
        ("parts with another sum", &set("parts", || ints(&[1, 3, 2, 3], &[2, 2]))),
        ("values are not read if a shape is wrong", &|args| {
            args[arg_of("index")] = longs(&[9, 9, 9, 9]);
            args[arg_of("state")] = Arg::TensorMut(with_layout(&[5], DType::F32, |_| {}));
        }),
    ]);
    insta::assert_snapshot!(found);
}

/// A planned call has no values yet; everything else is checked.
#[test]
fn planned_calls_are_checked_without_their_values() {
    let schema = operation().schema();
    let mut args = valid();
    args[arg_of("starts")] = ints(&[9, 9, 9], &[3]);
    assert!(check::check_call(schema, &args, None).is_err());
    assert!(check::check_planned_call(schema, &args, None).is_ok());
    args[arg_of("twin")] = zeros(&[2, 4], DType::F32);
    assert!(check::check_planned_call(schema, &args, None).is_err());
}

type Outs<'a> = Vec<OutArg<'a>>;

#[test]
fn outputs() {
    fn out(shape: &[i64], dtype: DType) -> OutArg<'static> {
        OutArg::Tensor(with_layout(shape, dtype, |_| {}))
    }
    let mut blocks = Vec::new();
    let mut case = |name: &str, args: &[Arg<'_>], change: &dyn Fn(&mut Outs<'_>)| {
        let mut list = None;
        let mut outs = vec![out(&[3, 4], DType::F32), OutArg::Absent, OutArg::Dynamic(&mut list)];
        change(&mut outs);
        blocks.push(format!("{name}\n  {}", problems(args, Some(&outs))));
    };
    let (args, mut both, mut down) = (valid(), valid(), valid());
    both[arg_of("both")] = Arg::Value(Value::Bool(true));
    down[arg_of("order")] = Arg::Value(Value::Enum(1));
    case("nothing wrong", &args, &|_| {});
    case("one too few", &args, &|outs| outs.truncate(2));
    case("one that this call does not produce", &args, &|outs| outs[1] = out(&[2], DType::I32));
    case("one that this call produces is missing", &both, &|_| {});
    case("both", &both, &|outs| outs[1] = out(&[2], DType::I32));
    case("another shape", &args, &|outs| outs[0] = out(&[4, 3], DType::F32));
    case("the shape of the other case", &down, &|outs| outs[0] = out(&[4, 3], DType::F32));
    case("another dtype", &args, &|outs| outs[0] = out(&[3, 4], DType::F16));
    case("no place for the text or list", &args, &|outs| outs[2] = out(&[3, 2], DType::I32));
    case("elements share memory", &args, &|outs| {
        outs[0] = OutArg::Tensor(with_layout(&[3, 4], DType::F32, |layout| {
            layout.strides = Dims::new(&[0, 1]).expect("two strides");
        }));
    });
    case("an invalid layout", &args, &|outs| {
        outs[0] = OutArg::Tensor(with_layout(&[3, 4], DType::F32, |layout| {
            layout.strides = Dims::new(&[1]).expect("one stride");
        }));
    });
    case("another device", &args, &|outs| {
        outs[0] = OutArg::Tensor(with_layout(&[3, 4], DType::F32, |layout| layout.device = CUDA));
    });
    case("it shares memory with an input", &args, &|outs| {
        let Arg::Tensor(x) = &args[arg_of("x")] else { panic!("x is a tensor") };
        // SAFETY: nothing reads or writes the memory during the check.
        outs[0] = OutArg::Tensor(unsafe { TensorMut::from_raw(x.as_ptr().cast_mut(), *x.layout()) });
    });
    case("two outputs share memory", &both, &|outs| {
        let OutArg::Tensor(first) = &mut outs[0] else { panic!("a tensor") };
        let layout = Layout::contiguous(&[2], DType::I32).expect("a layout");
        // SAFETY: inside the memory of the first output, which nothing accesses during the check.
        outs[1] = OutArg::Tensor(unsafe { TensorMut::from_raw(first.as_mut_ptr(), layout) });
    });
    let found = blocks.join("\n");
    insta::assert_snapshot!(found);
}

#[test]
fn bound_axes_defaults_and_inferred_outputs() {
    let schema = operation().schema();
    let mut args = valid();
    args[arg_of("x")] = zeros(&[2, 3, 4], DType::F16);
    let bound = check::check_call(schema, &args, None).expect("a valid call");
    assert_eq!(bound.axes, [Some(6), Some(4), Some(2), Some(2), None, None]);
    assert_eq!(bound.packs[0].as_deref(), Some(&[2, 3][..]));
    assert_eq!(bound.types, [Some(DType::F16)]);
    let value = |name: &str| {
        let param = schema.params.iter().position(|param| param.name == name).expect("a param");
        bound.values[schema.axes.len() + param]
    };
    assert_eq!(value("scale"), Value::Float(0.25));
    assert_eq!(value("window"), Value::Int(4));
    assert_eq!(value("order"), Value::Enum(0));
    let dims = |sizes: &[i64]| Dims::new(sizes).expect("few sizes");
    let specs = check::infer_outputs(schema, &bound).expect("everything is bound");
    assert_eq!(
        specs,
        [
            OutputSpec::Tensor(dims(&[2, 3, 4]), DType::F16),
            OutputSpec::Absent,
            OutputSpec::Dynamic(DType::I32)
        ]
    );
    args[arg_of("order")] = Arg::Value(Value::Enum(1));
    args[arg_of("both")] = Arg::Value(Value::Bool(true));
    let bound = check::check_call(schema, &args, None).expect("a valid call");
    let specs = check::infer_outputs(schema, &bound).expect("everything is bound");
    assert_eq!(
        specs,
        [
            OutputSpec::Tensor(dims(&[4, 2, 3]), DType::F16),
            OutputSpec::Tensor(dims(&[2]), DType::I32),
            OutputSpec::Dynamic(DType::I64)
        ]
    );
}

#[test]
fn produced_outputs() {
    let schema = operation().schema();
    let bound = check::check_call(schema, &valid(), None).expect("a valid call");
    let judge = |dtype, sizes: &[i64]| {
        check::check_produced(schema, &bound, &[(2, dtype, sizes)]).map_err(|reason| reason.code)
    };
    assert_eq!(judge(Some(DType::I32), &[5, 2]), Ok(()));
    assert_eq!(judge(Some(DType::I32), &[0, 2]), Ok(()));
    assert_eq!(judge(None, &[5, 2]), Ok(()));
    assert_eq!(judge(Some(DType::I64), &[5, 2]), Err(ReasonCode::DtypeMismatch));
    assert_eq!(judge(Some(DType::I32), &[5, 3]), Err(ReasonCode::ShapeMismatch));
    assert_eq!(judge(Some(DType::I32), &[5]), Err(ReasonCode::ShapeMismatch));
    assert_eq!(judge(Some(DType::I32), &[-1, 2]), Err(ReasonCode::ShapeMismatch));
    // A dynamic axis has one size in all outputs of a call.
    let twice = [(2, Some(DType::I32), &[5, 2][..]), (2, Some(DType::I32), &[6, 2][..])];
    let reason = check::check_produced(schema, &bound, &twice).expect_err("5 and 6 differ");
    assert_eq!((reason.required.as_deref(), reason.found.as_deref()), (Some("[5, 2]"), Some("[6, 2]")));
    // The number of an output that the schema does not have is ignored.
    assert!(check::check_produced(schema, &bound, &[(9, None, &[1])]).is_ok());
}

#[test]
fn a_kernel_with_wrong_dynamic_outputs_has_failed() {
    struct Produces(fn() -> Option<Tensor>);
    impl Kernel for Produces {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn run(
            &self,
            _: &mut [Arg<'_>],
            outputs: &mut [OutArg<'_>],
            _: &mut Run<'_>,
        ) -> Result<(), KernelError> {
            for output in outputs {
                if let OutArg::Dynamic(slot) = output {
                    **slot = self.0();
                }
            }
            Ok(())
        }
    }
    let run = |produce: fn() -> Option<Tensor>| {
        let spec = KernelSpec::new("test.checked", &operation().name, "test", "1", Platform::Cpu);
        let entry = KernelEntry::new(spec, Produces(produce)).of(operation());
        let (mut slot, mut scratch) = (None, Scratch::default());
        let mut outputs = [OutArg::Absent, OutArg::Absent, OutArg::Dynamic(&mut slot)];
        let outcome = entry.run(&mut valid(), &mut outputs, &mut Run::unbounded(&mut scratch));
        (outcome.map_err(|error| error.to_string()), slot.is_some())
    };
    assert_eq!(run(|| Tensor::zeros(&[5, 2], DType::I32).ok()), (Ok(()), true));
    insta::assert_debug_snapshot!([
        run(|| Tensor::zeros(&[5], DType::I32).ok()),
        run(|| Tensor::zeros(&[5, 2], DType::F32).ok()),
        run(|| None),
    ]);
}

/// Texts bind axes as tensors do, and their number is checked when a kernel produces them.
#[test]
fn texts_have_the_sizes_of_the_schema() {
    const TEXTS: &str = "
operation: demo.texts
version: 1
summary: An operation with texts.
doc: It is only checked, never run.
axes:
  count: { role: batch, fuzz: 0..3, doc: Texts. }
inputs:
  texts: { kind: text, shape: [count], doc: The texts. }
  weights: { shape: [count], dtype: f32, optional: true, doc: A weight of each. }
outputs:
  names: { kind: text, shape: [count], doc: The names. }
equivalence: { exact: true }
workloads:
  one: { count: 2 }
";
    let operation =
        dynamic::read_operation("demo/texts.yaml", TEXTS).unwrap_or_else(|error| panic!("{error}"));
    let args = |weights| [Arg::Text(&["a", "b"]), weights];
    let sentence = |args: &[Arg<'_>]| match check::check_call(operation.schema(), args, None) {
        Ok(_) => "valid".to_owned(),
        Err(Error::Validation { reasons, .. }) => reasons[0].sentence(),
        Err(error) => panic!("{error}"),
    };
    assert_eq!(sentence(&args(zeros(&[2], DType::F32))), "valid");
    insta::assert_snapshot!(sentence(&args(zeros(&[3], DType::F32))));

    let produced = |texts: Option<Vec<&str>>| {
        let mut texts = texts.map(|texts| texts.into_iter().map(str::to_owned).collect::<Vec<_>>());
        let mut outputs = [OutArg::Text(&mut texts)];
        let outcome = check::check_dynamic_outputs(operation.schema(), &args(Arg::Absent), &mut outputs);
        (outcome.map_err(|reason| reason.sentence()), texts)
    };
    assert_eq!(produced(Some(vec!["x", "y"])), (Ok(()), Some(vec!["x".to_owned(), "y".to_owned()])));
    insta::assert_debug_snapshot!([produced(None), produced(Some(vec!["x"])), produced(Some(vec![]))]);
}

#[test]
fn rejected_calls_are_counted_by_code() {
    let count = || {
        let counts: Vec<_> = check::error_counts().collect();
        assert!(counts.iter().all(|(_, count)| *count > 0));
        counts.iter().find(|(code, _)| *code == ReasonCode::NullData).map_or(0, |(_, count)| *count)
    };
    let before = count();
    check::count_errors(&[
        lz_core::Reason::new(ReasonCode::NullData),
        lz_core::Reason::new(ReasonCode::NullData),
    ]);
    assert!(count() >= before + 2);
}

#[test]
fn outputs_are_allocated_or_refused() {
    let operation = operation();
    let dims = |sizes: &[i64]| Some((Dims::new(sizes).expect("few sizes"), DType::F32));
    let made = check::allocate(operation, dims(&[2, 3])).expect("24 bytes");
    assert_eq!((made.shape(), made.dtype(), made.bytes()), (&[2, 3][..], DType::F32, &[0u8; 24][..]));
    let refused = |spec| match check::allocate(operation, spec) {
        Err(Error::Validation { operation, reasons }) => (operation, reasons[0].code),
        other => panic!("{:?}", other.map(|tensor| tensor.shape().to_vec())),
    };
    let name = || "demo.checked".to_owned();
    assert_eq!(refused(None), (name(), ReasonCode::ExpressionFailed));
    assert_eq!(refused(dims(&[1 << 40, 1 << 40])), (name(), ReasonCode::SizeOverflow));
    let none: Option<Tensor> = None;
    let Err(Error::KernelExecution { reasons, .. }) = check::produced(operation, "list", none) else {
        panic!()
    };
    assert_eq!(reasons[0].sentence(), "the kernel produced no list");
    assert_eq!(check::produced(operation, "list", Some(3)).ok(), Some(3));
}

/// Reads an operation of one host input, `x: [rows..., width]`, and one output.
fn with_output(name: &str, device: &str, output: &str) -> &'static OperationInfo {
    let schema = format!(
        "
operation: demo.{name}
version: 1
summary: An operation with one output.
doc: It is only checked, never run.
axes:
  rows: {{ role: batch, pack: true, fuzz: 0..3, doc: Rows. }}
  width: {{ role: feature, fuzz: [2, 4], doc: Width. }}
inputs:
  x: {{ shape: [rows..., width], dtype: f32, device: {device}, doc: The input. }}
outputs:
  out: {{ shape: {output}, dtype: f32, doc: The result. }}
equivalence: {{ exact: true }}
workloads:
  one: {{ rows: [2], width: 4 }}
"
    );
    dynamic::read_operation(&format!("demo/{name}.yaml"), &schema).unwrap_or_else(|error| panic!("{error}"))
}

/// Every kind of dimension counts: one more than fit is refused, whichever kind it has.
#[test]
fn outputs_have_a_maximum_rank() {
    let full = vec![1; lz_core::tensor::MAX_RANK];
    let kinds = [
        ("axis", "[rows..., width, width]"),
        ("fixed", "[rows..., width, 4]"),
        ("offset", "[rows..., width, width + 1]"),
        ("computed", "[rows..., width, width * 2]"),
        ("pack", "[width, width, rows...]"),
    ];
    for (name, shape) in kinds {
        let schema = with_output(name, "same", shape).schema();
        let judge = |sizes: &[i64]| {
            let args = [zeros(sizes, DType::F32)];
            let bound = check::check_call(schema, &args, None).expect("the input is valid");
            check::infer_outputs(schema, &bound).map(drop).map_err(|reason| reason.code)
        };
        assert_eq!(judge(&full), Err(ReasonCode::RankMismatch), "{shape}");
        assert_eq!(judge(&full[1..]), Ok(()), "{shape}");
    }
}

/// An output may be on a device only if an input whose device it follows is.
#[test]
fn outputs_follow_the_device_of_inputs() {
    let judge = |rule: &str, input: Device, output: Device| {
        let operation = with_output(&format!("device_{rule}"), rule, "[rows..., width]");
        let args = [read(with_layout(&[3, 4], DType::F32, |layout| layout.device = input))];
        let out = [OutArg::Tensor(with_layout(&[3, 4], DType::F32, |layout| layout.device = output))];
        match check::check_planned_call(operation.schema(), &args, Some(&out)) {
            Ok(_) => "valid".to_owned(),
            Err(Error::Validation { reasons, .. }) => reasons[0].sentence(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(judge("same", Device::HOST, Device::HOST), "valid");
    assert_eq!(judge("same", CUDA, CUDA), "valid");
    assert_eq!(judge("same", CUDA, Device::HOST), "out is on cpu:0, but x is on cuda:0");
    assert_eq!(judge("any", CUDA, Device::HOST), "valid");
    assert_eq!(judge("host", Device::HOST, Device::HOST), "valid");
    for rule in ["host", "any"] {
        assert_eq!(judge(rule, Device::HOST, CUDA), "out is on cuda:0, but no input is on a device");
    }
}
