//! The primitives of graphs: elementwise functions, reductions, products, data movement, convolutions.
//!
//! Each primitive is a schema (`schemas/primitives/*.yaml`) that is read on first use as a run-time operation: validated and
//! inferred by the interpreter of `lz_core::check`, selected like every other operation. There is no generated code per
//! primitive. Kernels take dynamic arguments; [`call::Call`] reads them, and the enums of [`functions`] name the cases of
//! params. Broadcasting is a view with stride 0, a transposed operand a view with swapped strides.
//!
//! ```
//! use lz_core::{Arg, TensorView};
//! use lz_primitives::functions::{Case, UnaryFunction};
//!
//! let x = [1.0f32, 4.0];
//! let args = [
//!     Arg::Tensor(TensorView::from_slice(&x, &[2])?),
//!     Arg::Value(UnaryFunction::Sqrt.value()),
//! ];
//! let bound = lz_core::check::check_call(lz_primitives::UNARY.schema(), &args, None)?;
//! assert_eq!(bound.axes, [Some(2)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod call;
pub mod functions;
pub mod numbers;
pub mod reference;

use std::sync::LazyLock;

use lz_core::{KernelEntry, OperationInfo};

macro_rules! primitives {
    ($($(#[$doc:meta])* $name:ident = $file:literal => $reference:path;)*) => {
        $($(#[$doc])*
        pub static $name: LazyLock<&'static OperationInfo> = LazyLock::new(|| {
            read(concat!("schemas/primitives/", $file, ".yaml"), include_str!(concat!("../schemas/primitives/", $file, ".yaml")))
        });)*

        /// Every primitive, in the order of their names.
        pub fn all() -> &'static [&'static OperationInfo] {
            static ALL: LazyLock<Vec<&'static OperationInfo>> = LazyLock::new(|| vec![$(*$name),*]);
            &ALL
        }

        /// The reference of every primitive, as kernels of priority 0.
        pub fn reference_kernels() -> Vec<KernelEntry> {
            vec![$(reference::entry(*$name, $reference)),*]
        }
    };
}

primitives! {
    /// Activation functions.
    ACTIVATION = "activation" => reference::elementwise::activation;
    /// Equally spaced numbers.
    ARANGE = "arange" => reference::movement::arange;
    /// Index of the largest or smallest element.
    ARG_REDUCE = "arg_reduce" => reference::reduce::arg_reduce;
    /// Functions of two float tensors.
    BINARY = "binary" => reference::elementwise::binary;
    /// Functions of two integer tensors.
    BINARY_INT = "binary_int" => reference::elementwise::binary_int;
    /// Functions of an integer tensor and a number.
    BINARY_INT_SCALAR = "binary_int_scalar" => reference::elementwise::binary_int_scalar;
    /// Functions of a float tensor and a number.
    BINARY_SCALAR = "binary_scalar" => reference::elementwise::binary_scalar;
    /// Conversion to another dtype.
    CAST = "cast" => reference::movement::cast;
    /// Comparisons of two tensors.
    COMPARE = "compare" => reference::elementwise::compare;
    /// Comparisons with a number.
    COMPARE_SCALAR = "compare_scalar" => reference::elementwise::compare_scalar;
    /// Two-dimensional convolution.
    CONV2D = "conv2d" => reference::window::conv2d;
    /// Copy of a strided tensor.
    COPY = "copy" => reference::movement::copy;
    /// Running sums.
    CUMSUM = "cumsum" => reference::reduce::cumsum;
    /// Slices by index.
    GATHER = "gather" => reference::movement::gather;
    /// Elements by index.
    GATHER_ELEMENTS = "gather_elements" => reference::movement::gather_elements;
    /// Batched matrix products.
    MATMUL = "matmul" => reference::matmul::matmul;
    /// Maximum or average of windows.
    POOL2D = "pool2d" => reference::window::pool2d;
    /// Reductions of floats.
    REDUCE = "reduce" => reference::reduce::reduce;
    /// Reductions of integers.
    REDUCE_INT = "reduce_int" => reference::reduce::reduce_int;
    /// Changed slices by index.
    SCATTER = "scatter" => reference::movement::scatter;
    /// Changed elements by index.
    SCATTER_ELEMENTS = "scatter_elements" => reference::movement::scatter_elements;
    /// Softmax of rows.
    SOFTMAX = "softmax" => reference::reduce::softmax;
    /// Properties of floats.
    TEST = "test" => reference::elementwise::test;
    /// Largest elements and their indices.
    TOPK = "topk" => reference::reduce::topk;
    /// Functions of a float tensor.
    UNARY = "unary" => reference::elementwise::unary;
    /// Functions of an integer tensor.
    UNARY_INT = "unary_int" => reference::elementwise::unary_int;
    /// Selection by a condition.
    WHERE = "where" => reference::elementwise::select;
}

fn read(path: &str, yaml: &str) -> &'static OperationInfo {
    match lz_core::dynamic::read_operation(path, yaml) {
        Ok(operation) => operation,
        // The tests of this crate read every schema.
        Err(error) => unreachable!("{path}: {error}"),
    }
}

#[cfg(test)]
mod tests;
