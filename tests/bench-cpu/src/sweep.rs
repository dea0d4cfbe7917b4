//! Shapes besides those of models: the sizes that others quote, and how cost grows with length, batch and size.

use lz_schema::dtype::DType;
use lz_schema::model::{Constant, Operation, Workload};

/// One shape of a sweep. What an operation does not have is left out of its workload.
struct Shape {
    operation: &'static str,
    name: String,
    axes: Vec<(&'static str, i64)>,
    dtype: DType,
    causal: bool,
    given: &'static [&'static str],
}

/// The shapes of an operation, as workloads.
pub fn of(operation: &Operation) -> Vec<Workload> {
    let all = shapes();
    all.iter()
        .filter(|shape| shape.operation == operation.name)
        .map(|shape| shape.workload(operation))
        .collect()
}

impl Shape {
    fn workload(&self, operation: &Operation) -> Workload {
        let size = |name: &str| self.axes.iter().find(|(own, _)| *own == name).map(|&(_, size)| vec![size]);
        let param = |name: &str| match name {
            "causal" => Some(Constant::Bool(self.causal)),
            _ => None,
        };
        Workload {
            name: self.name.clone(),
            axes: operation.axes.iter().map(|axis| size(&axis.name)).collect(),
            types: operation
                .types
                .iter()
                .map(|variable| ["T", "W"].contains(&variable.name.as_str()).then_some(self.dtype))
                .collect(),
            params: operation.params.iter().map(|own| param(&own.name)).collect(),
            given: operation
                .inputs
                .iter()
                .map(|input| input.optional.is_none() || self.given.contains(&input.name.as_str()))
                .collect(),
        }
    }
}

fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for causal in [false, true] {
            for length in [256, 1024, 2048] {
                let how = if causal { "causal" } else { "full" };
                all.push(Shape {
                    operation: "attention.standard.prefill",
                    name: format!("{dtype}_16x{length}x64_{how}"),
                    axes: vec![
                        ("batch", 1),
                        ("heads", 16),
                        ("seq_q", length),
                        ("seq_k", length),
                        ("head_dim", 64),
                        ("head_dim_v", 64),
                    ],
                    dtype,
                    causal,
                    given: &[],
                });
            }
        }
        for (batch, length) in [(1, 4096), (4, 4096), (16, 1024)] {
            all.push(Shape {
                operation: "attention.standard.decode",
                name: format!("{dtype}_{batch}x32x{length}x128"),
                axes: vec![
                    ("batch", batch),
                    ("heads", 32),
                    ("seq_k", length),
                    ("head_dim", 128),
                    ("head_dim_v", 128),
                ],
                dtype,
                causal: false,
                given: &[],
            });
        }
        for rows in [1, 32, 256, 4096] {
            for (operation, given) in [
                ("norm.rms", &["weight"][..]),
                ("norm.layer", &["weight", "bias"]),
                ("norm.rms.add", &["weight"]),
            ] {
                all.push(Shape {
                    operation,
                    name: format!("{dtype}_{rows}x4096"),
                    axes: vec![("rows", rows), ("hidden", 4096)],
                    dtype,
                    causal: false,
                    given,
                });
            }
        }
        for elements in [1 << 12, 1 << 16, 1 << 20, 1 << 24] {
            for operation in ["activation.silu", "activation.gelu", "activation.silu_mul"] {
                all.push(Shape {
                    operation,
                    name: format!("{dtype}_{elements}"),
                    axes: vec![("dims", elements)],
                    dtype,
                    causal: false,
                    given: &[],
                });
            }
        }
        for size in [512, 1024, 2048] {
            all.push(linear(dtype, size, size));
        }
        for rows in [1, 4, 16, 64] {
            all.push(linear(dtype, rows, 4096));
        }
    }
    all
}

fn linear(dtype: DType, rows: i64, features: i64) -> Shape {
    Shape {
        operation: "mlp.linear",
        name: format!("{dtype}_{rows}x{features}x{features}"),
        axes: vec![("rows", rows), ("in_features", features), ("out_features", features)],
        dtype,
        causal: false,
        given: &[],
    }
}
