//! An attention problem in plain vectors, its expected result by the plain formula, and comparisons.

use std::sync::OnceLock;

use lz_core::element::Bool;
use lz_core::tensor::{Device, Dims, Indices, Layout};
use lz_core::{DType, Tensor, TensorView};
use lz_engine::Engine;
use lz_ops::{AttentionGqaPrefill, attention_gqa_prefill, reference_engine};

/// An engine with only the reference kernels.
pub fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(reference_engine)
}

/// Deterministic pseudo-random values between -1 and 1.
pub fn random_values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
        })
        .collect()
}

/// A contiguous view.
pub fn view<'a, T: lz_core::element::Element>(data: &'a [T], shape: &[i64]) -> TensorView<'a> {
    TensorView::from_slice(data, shape).unwrap()
}

/// A view with explicit strides.
pub fn strided<'a>(data: &'a [f32], start: usize, shape: &[i64], strides: &[i64]) -> TensorView<'a> {
    let layout = Layout {
        shape: Dims::new(shape).unwrap(),
        strides: Dims::new(strides).unwrap(),
        dtype: DType::F32,
        device: Device::HOST,
    };
    TensorView::from_slice_with(data, start, layout).unwrap()
}

/// Bools in their memory representation.
pub fn bools(values: impl IntoIterator<Item = bool>) -> Vec<Bool> {
    values.into_iter().map(|value| Bool(u8::from(value))).collect()
}

/// The result of an attention call, in row-major order.
#[derive(Debug, Clone, Default)]
pub struct AttentionResult {
    pub output: Vec<f64>,
    pub lse: Vec<f64>,
}

impl AttentionResult {
    /// From the tensors of an operation.
    pub fn of(output: &Tensor, lse: Option<&Tensor>) -> AttentionResult {
        AttentionResult { output: flat(output), lse: lse.map_or(Vec::new(), flat) }
    }

    /// Panics if two results differ by more than f32 rounding. NaN equals NaN here.
    #[track_caller]
    pub fn assert_matches(&self, other: &AttentionResult) {
        for (what, actual, expected) in
            [("output", &self.output, &other.output), ("lse", &self.lse, &other.lse)]
        {
            assert_eq!(actual.len(), expected.len(), "{what} has a different length");
            for (index, (&a, &b)) in actual.iter().zip(expected).enumerate() {
                let same = a == b || (a.is_nan() && b.is_nan());
                assert!(
                    same || (a - b).abs() <= 2e-6 * b.abs().max(1.0),
                    "{what}[{index}]: {a}, expected {b}\n{actual:?}\n{expected:?}"
                );
            }
        }
    }
}

/// All elements of a tensor.
pub fn flat(tensor: &Tensor) -> Vec<f64> {
    Indices::new(tensor.shape()).map(|index| tensor.view().at(&index)).collect()
}

/// Swaps dimensions 1 and 2 of a contiguous tensor with the given sizes; `inner` is the number of elements
/// per index.
pub fn swap_middle<T: Copy>(data: &[T], sizes: [usize; 3], inner: usize) -> Vec<T> {
    let [outer, rows, columns] = sizes;
    let mut swapped = Vec::with_capacity(data.len());
    for o in 0..outer {
        for c in 0..columns {
            for r in 0..rows {
                let start = ((o * rows + r) * columns + c) * inner;
                swapped.extend_from_slice(&data[start..start + inner]);
            }
        }
    }
    swapped
}

/// Queries, keys and values of a batch, in BSHD order.
#[derive(Debug, Clone)]
pub struct Problem {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub dim: usize,
    pub dim_v: usize,
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Problem {
    /// Sizes: batch, queries, keys, heads, KV heads, head dimension, head dimension of values.
    pub fn new(sizes: [usize; 7], seed: u64) -> Problem {
        let [batch, queries, keys, heads, kv_heads, dim, dim_v] = sizes;
        // Scores between about -4 and 4, so that a wrong weight is visible.
        let twice = |random_values: Vec<f32>| random_values.into_iter().map(|number| 2.0 * number).collect();
        Problem {
            batch,
            queries,
            keys,
            heads,
            kv_heads,
            dim,
            dim_v,
            q: twice(random_values(batch * queries * heads * dim, seed)),
            k: twice(random_values(batch * keys * kv_heads * dim, seed + 1)),
            v: random_values(batch * keys * kv_heads * dim_v, seed + 2),
        }
    }

    pub fn q_shape(&self) -> [i64; 4] {
        [self.batch, self.queries, self.heads, self.dim].map(|size| size as i64)
    }

    pub fn k_shape(&self) -> [i64; 4] {
        [self.batch, self.keys, self.kv_heads, self.dim].map(|size| size as i64)
    }

    pub fn v_shape(&self) -> [i64; 4] {
        [self.batch, self.keys, self.kv_heads, self.dim_v].map(|size| size as i64)
    }

    pub fn default_scale(&self) -> f64 {
        f64::from((1.0 / (self.dim as f64).sqrt()) as f32)
    }

    /// The oracle. `score` gets batch row, head, query, key and the dot product, and returns `None` for a
    /// masked key.
    pub fn expected(
        &self,
        score: impl Fn(usize, usize, usize, usize, f64) -> Option<f64>,
    ) -> AttentionResult {
        let mut attention_result = AttentionResult::default();
        for b in 0..self.batch {
            for i in 0..self.queries {
                for h in 0..self.heads {
                    let g = h * self.kv_heads / self.heads;
                    let (mut sum, mut values) = (0.0, vec![0.0; self.dim_v]);
                    for j in 0..self.keys {
                        let q = &self.q[((b * self.queries + i) * self.heads + h) * self.dim..][..self.dim];
                        let k = &self.k[((b * self.keys + j) * self.kv_heads + g) * self.dim..][..self.dim];
                        let v =
                            &self.v[((b * self.keys + j) * self.kv_heads + g) * self.dim_v..][..self.dim_v];
                        let dot = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                        if let Some(score) = score(b, h, i, j, dot) {
                            sum += score.exp();
                            for (value, &v) in values.iter_mut().zip(v) {
                                *value += score.exp() * f64::from(v);
                            }
                        }
                    }
                    attention_result.lse.push(sum.ln());
                    attention_result
                        .output
                        .extend(values.iter().map(|value| if sum == 0.0 { 0.0 } else { value / sum }));
                }
            }
        }
        attention_result
    }

    /// Result of `attention.gqa.prefill` in BSHD, with lse and the given options.
    pub fn gqa<'a>(
        &'a self,
        options: impl FnOnce(AttentionGqaPrefill<'a>) -> AttentionGqaPrefill<'a>,
    ) -> AttentionResult {
        let args = AttentionGqaPrefill::new(
            view(&self.q, &self.q_shape()),
            view(&self.k, &self.k_shape()),
            view(&self.v, &self.v_shape()),
        );
        let result = attention_gqa_prefill(engine(), options(args.return_lse(true))).unwrap();
        AttentionResult::of(&result.output, result.lse.as_ref())
    }
}
