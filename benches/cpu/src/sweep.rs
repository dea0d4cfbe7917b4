//! Shapes besides those of models: commonly quoted sizes, and scaling with length, batch, heads, vocabulary
//! and size.

use lz_schema::dtype::DType;
use lz_schema::model::{Constant, Operation, Workload};

/// One shape of a sweep. Axes that an operation does not have are ignored.
struct Shape {
    operation: &'static str,
    name: String,
    axes: Vec<(&'static str, i64)>,
    dtype: DType,
    params: Vec<(&'static str, Constant)>,
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
        let param = |name: &str| {
            self.params.iter().find(|(own, _)| *own == name).map(|(_, constant)| constant.clone())
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
                let masking = if causal { "causal" } else { "full" };
                all.push(Shape {
                    operation: "attention.standard.prefill",
                    name: format!("{dtype}_16x{length}x64_{masking}"),
                    axes: vec![
                        ("batch", 1),
                        ("heads", 16),
                        ("seq_q", length),
                        ("seq_k", length),
                        ("head_dim", 64),
                        ("head_dim_v", 64),
                    ],
                    dtype,
                    params: vec![("causal", Constant::Bool(causal))],
                    given: &[],
                });
            }
        }
        for (batch, heads, length) in
            [(1, 32, 4096), (4, 32, 4096), (16, 32, 1024), (1, 8, 4096), (1, 128, 4096)]
        {
            all.push(Shape {
                operation: "attention.standard.decode",
                name: format!("{dtype}_{batch}x{heads}x{length}x128"),
                axes: vec![
                    ("batch", batch),
                    ("heads", heads),
                    ("seq_k", length),
                    ("head_dim", 128),
                    ("head_dim_v", 128),
                ],
                dtype,
                params: vec![],
                given: &[],
            });
        }
        for vocab in [32_000, 128_256, 256_000] {
            for (operation, param) in
                [("sampling.topk", ("k", Constant::Int(50))), ("sampling.topp", ("p", Constant::Float(0.9)))]
            {
                all.push(Shape {
                    operation,
                    name: format!("{dtype}_4x{vocab}"),
                    axes: vec![("rows", 4), ("vocab", vocab)],
                    dtype,
                    params: vec![param],
                    given: &[],
                });
            }
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
                    params: vec![],
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
                    params: vec![],
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
        params: vec![],
        given: &[],
    }
}
