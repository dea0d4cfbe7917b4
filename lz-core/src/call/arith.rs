//! The arithmetic of the expression language for functions that return an `Option`: a failed evaluation is `None`.

pub use crate::expr::arith::{abs_float, max_float, max_int, min_float, min_int, negate_float, widen};

use crate::expr::arith;

macro_rules! optional {
    ($($name:ident($($operand:ident),*) -> $ty:ty;)*) => {$(
        #[doc = concat!("[`arith::", stringify!($name), "`]; `None` if it fails.")]
        #[inline(always)]
        pub fn $name($($operand: $ty),*) -> Option<$ty> {
            arith::$name($($operand),*).ok()
        }
    )*};
}

optional! {
    add_int(a, b) -> i64;
    subtract_int(a, b) -> i64;
    multiply_int(a, b) -> i64;
    negate_int(a) -> i64;
    abs_int(a) -> i64;
    floor_divide_int(a, b) -> i64;
    modulo_int(a, b) -> i64;
    ceil_divide_int(a, b) -> i64;
    add_float(a, b) -> f64;
    subtract_float(a, b) -> f64;
    multiply_float(a, b) -> f64;
    divide_float(a, b) -> f64;
    floor_divide_float(a, b) -> f64;
    modulo_float(a, b) -> f64;
    sqrt_float(a) -> f64;
}
