//! The cases of enum params, in the schemas' order.

use lz_core::DType;
use lz_core::expr::Value;

/// An enum param of a primitive.
pub trait Case: Copy + Sized + 'static {
    /// Every case, in the schema's order.
    const ALL: &'static [Self];

    /// Names of the cases, in the same order.
    const NAMES: &'static [&'static str];

    /// The case as an argument.
    fn value(self) -> Value;
}

macro_rules! cases {
    ($($(#[$doc:meta])* $name:ident { $($case:ident = $text:literal),* $(,)? })*) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the schema documents the cases")]
        pub enum $name {
            $($case),*
        }

        impl Case for $name {
            const ALL: &'static [$name] = &[$($name::$case),*];
            const NAMES: &'static [&'static str] = &[$($text),*];

            fn value(self) -> Value {
                Value::Enum(self as u32)
            }
        })*
    };
}

cases! {
    /// `function` of `primitive.unary`.
    UnaryFunction {
        Neg = "neg", Abs = "absolute", Sign = "sign", Exp = "exp", Exp2 = "exp2", Expm1 = "expm1", Log = "log", Log2 = "log2",
        Log10 = "log10", Log1p = "log1p", Sqrt = "square_root", Rsqrt = "rsqrt", Reciprocal = "reciprocal", Square = "square",
        Sin = "sin", Cos = "cos", Tan = "tan", Asin = "asin", Acos = "acos", Atan = "atan", Sinh = "sinh", Cosh = "cosh",
        Tanh = "tanh", Asinh = "asinh", Acosh = "acosh", Atanh = "atanh", Erf = "erf", Floor = "floor", Ceil = "ceil",
        Round = "round", Trunc = "trunc",
    }

    /// `function` of `primitive.activation`.
    ActivationFunction {
        Relu = "relu", Sigmoid = "sigmoid", Silu = "silu", Gelu = "gelu", GeluTanh = "gelu_tanh", Softplus = "softplus",
        Mish = "mish", Hardswish = "hardswish", Hardsigmoid = "hardsigmoid", Elu = "elu", Celu = "celu", Selu = "selu",
        LeakyRelu = "leaky_relu", Clamp = "clamp", LogSigmoid = "log_sigmoid", Softsign = "softsign",
    }

    /// `function` of `primitive.unary_int`.
    UnaryIntFunction {
        Neg = "neg", Abs = "absolute", Sign = "sign", BitwiseNot = "bitwise_not", LogicalNot = "logical_not",
    }

    /// `function` of `primitive.test`.
    TestFunction { IsNan = "is_nan", IsInf = "is_inf", IsFinite = "is_finite" }

    /// `function` of `primitive.binary` and `primitive.binary_scalar`.
    BinaryFunction {
        Add = "add", Sub = "sub", Mul = "mul", Div = "div", Pow = "pow", Minimum = "minimum", Maximum = "maximum",
        Mod = "mod", Fmod = "fmod", FloorDivide = "floor_divide", TruncDivide = "trunc_divide", Atan2 = "atan2",
    }

    /// `function` of `primitive.binary_int` and `primitive.binary_int_scalar`.
    BinaryIntFunction {
        Add = "add", Sub = "sub", Mul = "mul", FloorDivide = "floor_divide", TruncDivide = "trunc_divide", Mod = "mod",
        Fmod = "fmod", Minimum = "minimum", Maximum = "maximum", Pow = "pow", BitwiseAnd = "bitwise_and",
        BitwiseOr = "bitwise_or", BitwiseXor = "bitwise_xor", ShiftLeft = "shift_left", ShiftRight = "shift_right",
    }

    /// `function` of `primitive.compare` and `primitive.compare_scalar`.
    CompareFunction { Eq = "eq", Ne = "ne", Lt = "lt", Le = "le", Gt = "gt", Ge = "ge" }

    /// `function` of `primitive.reduce`.
    ReduceFunction {
        Sum = "sum", Mean = "mean", Max = "maximum", Min = "minimum", Prod = "prod", SumSquares = "sum_squares",
    }

    /// `function` of `primitive.reduce_int`.
    ReduceIntFunction { Sum = "sum", Prod = "prod", Max = "maximum", Min = "minimum", Any = "any", All = "all" }

    /// `function` of `primitive.arg_reduce`.
    ArgReduceFunction { Argmax = "argmax", Argmin = "argmin" }

    /// `reduction` of `primitive.scatter` and `primitive.scatter_elements`.
    ScatterReduction { None = "none", Add = "add", Mul = "mul", Max = "maximum", Min = "minimum" }

    /// `function` of `primitive.pool2d`.
    PoolFunction { Max = "maximum", Avg = "average" }

    /// `activation` of `primitive.conv2d`.
    ConvActivation { None = "none", Relu = "relu" }

    /// `to` of `primitive.cast`.
    TargetDtype {
        F32 = "f32", F16 = "f16", Bf16 = "bf16", F64 = "f64", I64 = "i64", I32 = "i32", I16 = "i16", I8 = "i8", U8 = "u8",
        Bool = "bool",
    }
}

impl TargetDtype {
    /// The case of a dtype; `None` if primitives do not support it.
    pub fn of(dtype: DType) -> Option<TargetDtype> {
        TargetDtype::ALL.iter().copied().find(|case| case.dtype() == dtype)
    }

    /// The dtype of the case.
    pub fn dtype(self) -> DType {
        match self {
            TargetDtype::F32 => DType::F32,
            TargetDtype::F16 => DType::F16,
            TargetDtype::Bf16 => DType::BF16,
            TargetDtype::F64 => DType::F64,
            TargetDtype::I64 => DType::I64,
            TargetDtype::I32 => DType::I32,
            TargetDtype::I16 => DType::I16,
            TargetDtype::I8 => DType::I8,
            TargetDtype::U8 => DType::U8,
            TargetDtype::Bool => DType::Bool,
        }
    }
}
