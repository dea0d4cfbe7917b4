//! faer's product of f32 matrices, in this process: a second peer for linear layers that are nothing else.

use crate::cases::Case;

/// Two factors and a place for their product, laid out as the layer's are.
#[cfg(feature = "peers")]
pub struct Product {
    sizes: [usize; 3],
    left: Vec<f32>,
    right: Vec<f32>,
    result: Vec<f32>,
    threads: faer::Par,
}

#[cfg(feature = "peers")]
impl Product {
    /// The product that a case is; nothing if it is none, or another type's.
    pub fn of(case: &Case, threads: usize) -> Option<Product> {
        if case.operation != "mlp.linear" || case.told["types"]["T"] != "f32" {
            return None;
        }
        let size = |name: &str| usize::try_from(case.told["axes"][name].as_u64()?).ok();
        let rows = match &case.told["axes"]["rows"] {
            serde_json::Value::Array(sizes) => {
                sizes.iter().map(|size| size.as_u64()).product::<Option<u64>>()?
            }
            one => one.as_u64()?,
        };
        let sizes = [usize::try_from(rows).ok()?, size("in_features")?, size("out_features")?];
        let [rows, depth, columns] = sizes;
        let numbers = |count: usize| (0..count).map(|at| (at % 251) as f32 / 251.0 - 0.5).collect();
        Some(Product {
            sizes,
            left: numbers(rows * depth),
            right: numbers(columns * depth),
            result: vec![0.0; rows * columns],
            threads: if threads > 1 { faer::Par::rayon(threads) } else { faer::Par::Seq },
        })
    }

    /// Multiplies.
    pub fn multiply(&mut self) {
        use faer::{MatMut, MatRef};
        let [rows, depth, columns] = self.sizes;
        let left = MatRef::from_row_major_slice(&self.left, rows, depth);
        let right = MatRef::from_row_major_slice(&self.right, columns, depth).transpose();
        let result = MatMut::from_row_major_slice_mut(&mut self.result, rows, columns);
        faer::linalg::matmul::matmul(result, faer::Accum::Replace, left, right, 1.0, self.threads);
    }
}

/// Without the feature there is none.
#[cfg(not(feature = "peers"))]
pub enum Product {}

#[cfg(not(feature = "peers"))]
impl Product {
    /// No product.
    pub fn of(_case: &Case, _threads: usize) -> Option<Product> {
        None
    }

    /// Never called.
    pub fn multiply(&mut self) {
        match *self {}
    }
}
