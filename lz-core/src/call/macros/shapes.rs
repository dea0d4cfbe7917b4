//! Macros that bind axes to the sizes of inputs and compute sizes of outputs.

/// The axis sizes of a checked call. A pack has its sizes in a second field: `rows..rows_dims`.
#[doc(hidden)]
#[macro_export]
macro_rules! axes {
    ($name:ident: $($axis:ident $(.. $dims:ident)? $(= $doc:literal)?),* $(,)?) => {
        /// Axis sizes of a checked call; an axis that only an absent input has is 0.
        #[derive(Debug, Clone, Copy)]
        #[non_exhaustive]
        pub struct $name {
            $(
                #[doc = concat!("`", stringify!($axis), "`. " $(, $doc)?)]
                pub $axis: i64,
                $(
                    #[doc = concat!("Sizes whose product is `", stringify!($axis), "`.")]
                    pub $dims: $crate::call::Dims,
                )?
            )*
        }
    };
}

/// Axes before any input has bound them; a fixed axis has its value.
#[doc(hidden)]
#[macro_export]
macro_rules! unbound {
    (@ $value:literal) => { $value };
    (@) => { $crate::call::UNBOUND };
    ($name:ident: $($axis:ident $(.. $dims:ident)? $(= $value:literal)?),* $(,)?) => {
        $name { $($axis: $crate::unbound!(@ $($value)?), $($dims: $crate::call::Dims::empty(),)?)* }
    };
}

/// Binds the axes of a shape, or compares where one is bound; returns `None` from the caller if a size differs.
///
/// A dimension is an axis, an axis plus or minus a number in parentheses, a number, or `_` for one that is checked later.
/// A pack stands between the dimensions before and after it.
#[doc(hidden)]
#[macro_export]
macro_rules! shape {
    (@one $axes:ident, $size:expr, _) => {};
    (@one $axes:ident, $size:expr, $fixed:literal) => {
        if $size != $fixed {
            return None;
        }
    };
    (@one $axes:ident, $size:expr, $axis:ident) => {
        if !$crate::call::bind(&mut $axes.$axis, $size) {
            return None;
        }
    };
    (@one $axes:ident, $size:expr, ($axis:ident + $offset:literal)) => {
        let size = $size.checked_sub($offset)?;
        if size < 0 || !$crate::call::bind(&mut $axes.$axis, size) {
            return None;
        }
    };
    (@one $axes:ident, $size:expr, ($axis:ident - $offset:literal)) => {
        let size = $size.checked_add($offset)?;
        if size < 0 || !$crate::call::bind(&mut $axes.$axis, size) {
            return None;
        }
    };
    (@first $axes:ident, $shape:ident, ($($index:tt)*)) => {};
    (@first $axes:ident, $shape:ident, ($($index:tt)*) $dim:tt $($rest:tt)*) => {
        $crate::shape!(@one $axes, $shape[$($index)*], $dim);
        $crate::shape!(@first $axes, $shape, ($($index)* + 1) $($rest)*);
    };
    (@last $axes:ident, $shape:ident,) => {};
    (@last $axes:ident, $shape:ident, $dim:tt $($rest:tt)*) => {
        $crate::shape!(@one $axes, $shape[$shape.len() - 1 - $crate::shape!(@count $($rest)*)], $dim);
        $crate::shape!(@last $axes, $shape, $($rest)*);
    };
    (@count $($dim:tt)*) => {{
        const DIMS: &[&str] = &[$(stringify!($dim)),*];
        DIMS.len()
    }};
    ($view:ident, $axes:ident, [$($dim:tt),*]) => {{
        let shape = $view.shape();
        if shape.len() != $crate::shape!(@count $($dim)*) {
            return None;
        }
        $crate::shape!(@first $axes, shape, (0) $($dim)*);
    }};
    ($view:ident, $axes:ident, [$($first:tt),*], $dims:ident/$bound:ident, [$($last:tt),*]) => {{
        let shape = $view.shape();
        if shape.len() < $crate::shape!(@count $($first)* $($last)*) {
            return None;
        }
        $crate::shape!(@first $axes, shape, (0) $($first)*);
        let pack = &shape[$crate::shape!(@count $($first)*)..shape.len() - $crate::shape!(@count $($last)*)];
        if !$crate::call::bind_pack(&mut $axes.$dims, &mut $bound, pack) {
            return None;
        }
        $crate::shape!(@last $axes, shape, $($last)*);
    }};
}

/// Sizes from bound axes, as [`Dims`](crate::tensor::Dims); returns `None` from the caller if one cannot be computed.
///
/// A dimension is written as in [`shape`], or `(rows_dims..)` for a pack, or `{…}` for an expression of type `Option<i64>`.
/// A shape that depends on a parameter is `{ (parameter) case => […], … }`.
#[doc(hidden)]
#[macro_export]
macro_rules! sizes {
    (@one ($($axes:tt)*) $size:literal) => { Some($size) };
    (@one ($($axes:tt)*) $axis:ident) => { Some($($axes)*.$axis) };
    (@one ($($axes:tt)*) ($axis:ident + $offset:literal)) => { $($axes)*.$axis.checked_add($offset) };
    (@one ($($axes:tt)*) ($axis:ident - $offset:literal)) => { $($axes)*.$axis.checked_sub($offset) };
    (@one ($($axes:tt)*) {$($size:tt)*}) => { $($size)* };
    (@push ($($axes:tt)*) $sizes:ident ($dims:ident ..)) => {
        for &size in $($axes)*.$dims.iter() {
            if !$sizes.push(size) {
                return None;
            }
        }
    };
    (@push $axes:tt $sizes:ident $dim:tt) => {
        if !$sizes.push($crate::sizes!(@one $axes $dim)?) {
            return None;
        }
    };
    (@next ($($axes:tt)*) $rest:ident ($dims:ident ..)) => { $crate::call::next_are(&mut $rest, &$($axes)*.$dims) };
    (@next $axes:tt $rest:ident $dim:tt) => { $crate::call::next_is(&mut $rest, $crate::sizes!(@one $axes $dim)) };
    (@are $axes:tt $slot:ident [$($dim:tt),*]) => {{
        #[allow(unused_mut, reason = "a scalar has no sizes")]
        let mut rest = $slot.shape();
        $($crate::sizes!(@next $axes rest $dim) &&)* rest.is_empty()
    }};
    (@are $axes:tt $slot:ident {($on:expr) $($case:pat => $dims:tt),* $(,)?}) => {
        match $on { $($case => $crate::sizes!(@are $axes $slot $dims),)* }
    };
    ($axes:tt, [$($dim:tt),*]) => {{
        #[allow(unused_mut, reason = "a scalar has no sizes")]
        let mut sizes = $crate::call::Dims::empty();
        $($crate::sizes!(@push $axes sizes $dim);)*
        sizes
    }};
    ($axes:tt, {($on:expr) $($case:pat => $dims:tt),* $(,)?}) => {
        match $on { $($case => $crate::sizes!($axes, $dims),)* }
    };
}
