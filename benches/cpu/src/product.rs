//! faer's f32 GEMM, in this process: a second peer for plain linear layers.

use crate::cases::Case;

/// Operands and output of the GEMM, with the layout of the linear layer.
#[cfg(feature = "peers")]
pub struct FaerGemm {
    sizes: [usize; 3],
    a: Vec<f32>,
    b: Vec<f32>,
    result: Vec<f32>,
    threads: faer::Par,
}

#[cfg(feature = "peers")]
impl FaerGemm {
    /// The GEMM of a case; `None` if it is not a plain f32 linear layer.
    pub fn of(case: &Case, threads: usize) -> Option<FaerGemm> {
        if case.operation != "mlp.linear" || case.description["types"]["T"] != "f32" {
            return None;
        }
        let size = |name: &str| usize::try_from(case.description["axes"][name].as_u64()?).ok();
        let rows = match &case.description["axes"]["rows"] {
            serde_json::Value::Array(sizes) => {
                sizes.iter().map(|size| size.as_u64()).product::<Option<u64>>()?
            }
            one => one.as_u64()?,
        };
        let sizes = [usize::try_from(rows).ok()?, size("in_features")?, size("out_features")?];
        let [rows, depth, columns] = sizes;
        let values = |count: usize| (0..count).map(|at| (at % 251) as f32 / 251.0 - 0.5).collect();
        Some(FaerGemm {
            sizes,
            a: values(rows * depth),
            b: values(columns * depth),
            result: vec![0.0; rows * columns],
            threads: if threads > 1 { faer::Par::rayon(threads) } else { faer::Par::Seq },
        })
    }

    /// Runs the GEMM.
    pub fn run(&mut self) {
        use faer::{MatMut, MatRef};
        let [rows, depth, columns] = self.sizes;
        let a = MatRef::from_row_major_slice(&self.a, rows, depth);
        let b = MatRef::from_row_major_slice(&self.b, columns, depth).transpose();
        let result = MatMut::from_row_major_slice_mut(&mut self.result, rows, columns);
        faer::linalg::matmul::matmul(result, faer::Accum::Replace, a, b, 1.0, self.threads);
    }
}

/// Not available without the feature `peers`.
#[cfg(not(feature = "peers"))]
pub enum FaerGemm {}

#[cfg(not(feature = "peers"))]
impl FaerGemm {
    /// No product.
    pub fn of(_case: &Case, _threads: usize) -> Option<FaerGemm> {
        None
    }

    /// Never called.
    pub fn run(&mut self) {
        match *self {}
    }
}
