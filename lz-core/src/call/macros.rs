//! Macros that declare an operation's types and methods from tables. Only generated code uses them.
//!
//! Kinds of inputs: `tensor`, `tensor_mut`, `texts`, `handle`; any other word is the type of a parameter.
//! Kinds of outputs: `tensor`, `dynamic` (the kernel determines the size) and `texts`, each also `optional_…`.

/// An enum parameter and the schema's spelling of its cases.
#[doc(hidden)]
#[macro_export]
macro_rules! enumeration {
    ($doc:literal; $name:ident { $($case:ident = $text:literal),* $(,)? }) => {
        #[doc = $doc]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`.")] $case,)*
        }

        impl $name {
            /// The schema's spelling of every case, in order.
            pub const NAMES: &'static [&'static str] = &[$($text),*];
            /// The same for tables of context fields.
            #[doc(hidden)]
            pub const CASES: &'static [::std::borrow::Cow<'static, str>] = &[$(::std::borrow::Cow::Borrowed($text)),*];

            /// The case with this number.
            pub const fn from_number(number: u32) -> Option<Self> {
                $(if number == Self::$case as u32 {
                    return Some(Self::$case);
                })*
                None
            }
        }

        impl $crate::call::FromArg<'_> for $name {
            fn from_arg(arg: &mut $crate::call::Arg<'_>) -> Option<Self> {
                match arg {
                    $crate::call::Arg::Value($crate::call::Value::Enum(number)) => Self::from_number(*number),
                    _ => None,
                }
            }
        }

        impl $crate::call::ToArg for $name {
            fn to_arg(&self) -> $crate::call::Arg<'_> {
                $crate::call::Arg::Value($crate::call::Value::Enum(*self as u32))
            }
        }
    };
}

/// The type of an argument of this kind.
#[doc(hidden)]
#[macro_export]
macro_rules! argument_type {
    ($a:lifetime tensor) => { $crate::call::TensorView<$a> };
    ($a:lifetime tensor_mut) => { $crate::call::TensorMut<$a> };
    ($a:lifetime texts) => { &$a [&$a str] };
    ($a:lifetime handle) => { &$a dyn $crate::call::Handle };
    ($a:lifetime $param:ident) => { $param };
}

/// `new`, one setter per optional argument, and the conversions from and to dynamic arguments.
///
/// Arguments that are shared with specializations have the number of the operation as a constant.
#[doc(hidden)]
#[macro_export]
macro_rules! arguments {
    (
        $args:ident $(<$number:ident>)?;
        required($($required:ident: $required_kind:ident),*);
        optional($($optional:ident: $kind:ident),*);
        order($($field:ident),*) $(;)?
    ) => {
        impl<'a $(, const $number: u8)?> $args<'a $(, $number)?> {
            /// With every argument that has no default.
            #[allow(clippy::too_many_arguments, reason = "as many as the schema requires")]
            pub fn new($($required: $crate::argument_type!('a $required_kind)),*) -> Self {
                Self { $($required,)* $($optional: None,)* }
            }

            $(
                #[doc = concat!("Sets [`", stringify!($optional), "`](Self#structfield.", stringify!($optional), ").")]
                #[must_use]
                pub fn $optional(mut self, $optional: $crate::argument_type!('a $kind)) -> Self {
                    self.$optional = Some($optional);
                    self
                }
            )*

            /// From dynamic arguments (inputs, then parameters); `None` if one has the wrong kind, or is missing and required.
            pub fn from_args(args: &'a mut [$crate::call::Arg<'_>]) -> Option<Self> {
                #[allow(unused_mut, unused_variables, reason = "operations without arguments read none")]
                let mut next = args.iter_mut();
                Some(Self { $($field: $crate::call::FromArg::from_arg(next.next()?)?,)* })
            }

            /// As dynamic arguments, exactly as the caller passed them.
            pub fn to_args(&self) -> [$crate::call::Arg<'_>; { const NAMES: &[&str] = &[$(stringify!($field)),*]; NAMES.len() }] {
                [$($crate::call::ToArg::to_arg(&self.$field)),*]
            }
        }
    };
}

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

/// Applies a check to several inputs.
#[doc(hidden)]
#[macro_export]
macro_rules! every {
    ($self:ident, $check:ident: $($input:ident),*) => { $($crate::call::$check(&$self.$input)?;)* };
}

/// The inputs are on one device.
#[doc(hidden)]
#[macro_export]
macro_rules! same_device {
    ($self:ident: $($input:ident),*) => {
        let mut device = None;
        $($crate::call::on_same_device(&mut device, &$self.$input)?;)*
    };
}

/// An input that is changed in place overlaps neither itself nor the others.
#[doc(hidden)]
#[macro_export]
macro_rules! written_disjoint {
    ($self:ident, $written:ident: $($other:ident),*) => {
        $crate::call::writes_are_disjoint(&$self.$written)?;
        $($crate::call::holds($crate::call::disjoint(&$self.$written, &$self.$other))?;)*
    };
}

/// The values of an input obey a rule. Data of a device is read only for `debug`: otherwise not even the bounds are computed.
#[doc(hidden)]
#[macro_export]
macro_rules! value_rule {
    ($self:ident, $input:ident: $rule:ident($($bound:expr),*)) => {
        if let Some(view) = $crate::call::Input::given(&$self.$input)
            && $crate::call::values::is_checked(view)
            && !$crate::call::values::$rule(view $(, $bound)*)
        {
            return None;
        }
    };
}

/// The checked call of an operation, and how arguments become one.
#[doc(hidden)]
#[macro_export]
macro_rules! checked_call {
    (
        $name:literal, $info:ident, $args:ident, $axes:ident, $call:ident;
        inputs($($input:ident),*);
        params($($param:ident: $ty:ident),*);
        dtypes($($dtype:ident = $variable:literal),*) $(;)?
    ) => {
        #[doc = concat!("A checked call of `", $name, "`: axes are bound and parameters have values.")]
        ///
        /// Only `check` creates one, so that kernels need not check anything.
        pub struct $call<'a> {
            args: &'a $args<'a>,
            /// Axis sizes.
            pub axes: $axes,
            $(
                #[doc = concat!("[`", stringify!($args), "::", stringify!($param), "`](", stringify!($args), "#structfield.", stringify!($param), "), or its default.")]
                pub $param: $ty,
            )*
            $(
                #[doc = concat!("The dtype that `", $variable, "` is bound to, if any.")]
                pub $dtype: Option<$crate::call::DType>,
            )*
        }

        impl<'a> $crate::call::Deref for $call<'a> {
            type Target = $args<'a>;
            #[inline(always)]
            fn deref(&self) -> &$args<'a> {
                self.args
            }
        }

        impl $call<'_> {
            /// As dynamic arguments, with a value for every parameter.
            pub fn to_args(&self) -> [$crate::call::Arg<'_>; { const NAMES: &[&str] = &[$(stringify!($input),)* $(stringify!($param),)*]; NAMES.len() }] {
                [$($crate::call::ToArg::to_arg(&self.args.$input),)* $($crate::call::ToArg::to_arg(&self.$param),)*]
            }
        }

        $crate::checks!($info, $args, $call);
    };
}

/// How arguments become a checked call.
#[doc(hidden)]
#[macro_export]
macro_rules! checks {
    ($info:ident, $args:ident, $call:ident) => {
        impl<'a> $args<'a> {
            /// Checks the call against the schema; the error lists everything that is wrong.
            #[inline]
            pub fn check(&self) -> Result<$call<'_>, $crate::call::Error> {
                let mut checked = None;
                self.check_in(&mut checked)?;
                checked.ok_or_else(|| $crate::call::disagreement(&$info))
            }

            /// [`check`](Self::check) into storage of the caller's: a checked call is too large to be moved on every call.
            #[inline]
            pub fn check_in<'r, 'c>(
                &'c self,
                checked: &'r mut Option<$call<'c>>,
            ) -> Result<&'r $call<'c>, $crate::call::Error> {
                match self.bind(checked) {
                    Some(call) => Ok(call),
                    None => Err(self.problems(None)),
                }
            }

            #[cold]
            #[inline(never)]
            fn problems(&self, outputs: Option<&[$crate::call::OutArg<'_>]>) -> $crate::call::Error {
                match $crate::call::check_call($info.schema(), &self.to_args(), outputs) {
                    Err(error) => error,
                    Ok(_) => $crate::call::disagreement(&$info),
                }
            }
        }
    };
}

/// Types and conversions of one output slot, by its kind.
#[doc(hidden)]
#[macro_export]
macro_rules! slot {
    // The slot as callers pass it.
    (@type $a:lifetime tensor) => { $crate::call::TensorMut<$a> };
    (@type $a:lifetime optional_tensor) => { Option<$crate::call::TensorMut<$a>> };
    (@type $a:lifetime dynamic) => { &$a mut Option<$crate::call::Tensor> };
    (@type $a:lifetime optional_dynamic) => { Option<&$a mut Option<$crate::call::Tensor>> };
    (@type $a:lifetime texts) => { &$a mut Option<Vec<String>> };
    (@type $a:lifetime optional_texts) => { Option<&$a mut Option<Vec<String>>> };
    // The slot by reference: tensors are not moved.
    (@borrowed $a:lifetime tensor) => { &$crate::call::TensorMut<$a> };
    (@borrowed $a:lifetime optional_tensor) => { Option<&$crate::call::TensorMut<$a>> };
    (@borrowed $a:lifetime $kind:ident) => { $crate::slot!(@type $a $kind) };
    (@borrow $slot:ident tensor) => { &$slot };
    (@borrow $slot:ident optional_tensor) => { $slot.as_ref() };
    (@borrow $slot:ident $kind:ident) => { $slot };
    // The owned result.
    (@owned tensor) => { $crate::call::Tensor };
    (@owned optional_tensor) => { Option<$crate::call::Tensor> };
    (@owned dynamic) => { $crate::call::Tensor };
    (@owned optional_dynamic) => { Option<$crate::call::Tensor> };
    (@owned texts) => { Vec<String> };
    (@owned optional_texts) => { Option<Vec<String>> };
    // What `accepts` looks at.
    (@seen $slot:ident tensor) => { $slot };
    (@seen $slot:ident optional_tensor) => { $slot };
    (@seen $slot:ident dynamic) => { true };
    (@seen $slot:ident texts) => { true };
    (@seen $slot:ident $kind:ident) => { $slot.is_some() };
    // The slot for the kernel. Copied field by field, because the fields were just written.
    (@duplicate $slot:ident tensor) => { unsafe { $slot.duplicate() } };
    (@duplicate $slot:ident optional_tensor) => { $slot.map(|slot| unsafe { slot.duplicate() }) };
    (@duplicate $slot:ident $kind:ident) => { $slot };
    (@alias $input:expr, tensor) => { unsafe { $input.duplicate() } };
    (@alias $input:expr, optional_tensor) => { $input.as_ref().map(|tensor| unsafe { tensor.duplicate() }) };
    // The slot as a dynamic output.
    (@problem $slot:ident tensor) => { $crate::call::OutArg::Tensor(unsafe { $slot.duplicate() }) };
    (@problem $slot:ident optional_tensor) => {
        $slot.map_or($crate::call::OutArg::Absent, |slot| $crate::call::OutArg::Tensor(unsafe { slot.duplicate() }))
    };
    (@problem $slot:ident $kind:ident) => { $crate::slot!(@arg $slot, $kind) };
    (@arg $slot:expr, tensor) => { $crate::call::OutArg::Tensor($slot) };
    (@arg $slot:expr, optional_tensor) => { $slot.map_or($crate::call::OutArg::Absent, $crate::call::OutArg::Tensor) };
    (@arg $slot:expr, dynamic) => { $crate::call::OutArg::Dynamic($slot) };
    (@arg $slot:expr, optional_dynamic) => { $slot.map_or($crate::call::OutArg::Absent, $crate::call::OutArg::Dynamic) };
    (@arg $slot:expr, texts) => { $crate::call::OutArg::Text($slot) };
    (@arg $slot:expr, optional_texts) => { $slot.map_or($crate::call::OutArg::Absent, $crate::call::OutArg::Text) };
    (@reborrow $slot:expr, tensor) => { $slot.reborrow() };
    (@reborrow $slot:expr, optional_tensor) => { $slot.as_mut().map($crate::call::TensorMut::reborrow) };
    (@reborrow $slot:expr, dynamic) => { &mut *$slot };
    (@reborrow $slot:expr, texts) => { &mut *$slot };
    (@reborrow $slot:expr, $kind:ident) => { $slot.as_deref_mut() };
    // The slot from the next dynamic output.
    (@find $next:ident, $variant:ident) => {
        match $next.next().map($crate::call::OutArg::reborrow) {
            Some($crate::call::OutArg::$variant(slot)) => Some(slot),
            _ => None,
        }
    };
    (@required $next:ident, $variant:ident, $slot:ident) => {
        match $crate::slot!(@find $next, $variant) {
            Some(slot) => slot,
            None => {
                let message = concat!("missing output `", stringify!($slot), "`");
                return Err($crate::call::KernelError::failed(message));
            }
        }
    };
    (@take $next:ident, tensor, $slot:ident) => { $crate::slot!(@required $next, Tensor, $slot) };
    (@take $next:ident, dynamic, $slot:ident) => { $crate::slot!(@required $next, Dynamic, $slot) };
    (@take $next:ident, texts, $slot:ident) => { $crate::slot!(@required $next, Text, $slot) };
    (@take $next:ident, optional_tensor, $slot:ident) => { $crate::slot!(@find $next, Tensor) };
    (@take $next:ident, optional_dynamic, $slot:ident) => { $crate::slot!(@find $next, Dynamic) };
    (@take $next:ident, optional_texts, $slot:ident) => { $crate::slot!(@find $next, Text) };
    // The stride class that selection sees.
    (@class $slot:expr, tensor) => { $slot.stride_class() };
    (@class $slot:expr, optional_tensor) => {
        $slot.as_ref().map_or($crate::call::FRESH_OUTPUT, $crate::call::TensorMut::stride_class)
    };
    (@class $slot:expr, $kind:ident) => { $crate::call::FRESH_OUTPUT };
    (@fresh $slot:ident) => { $crate::call::FRESH_OUTPUT };
}

/// Shape and dtype of an output of a checked call, and the check of a slot for it.
///
/// `same` and `any` list the inputs that the slot must not overlap; those in `same` are on the slot's device. `host` stands
/// where no input must be given: the slot is in host memory unless one of these is.
#[doc(hidden)]
#[macro_export]
macro_rules! output {
    (@fits $self:ident, $slot:ident, $dtype:expr, $shape:tt, ($($same:ident),*), ($($any:ident),*) $(, ($($given:ident),*))?) => {{
        let shape_and_dtype =
            || -> Option<bool> { Some($crate::sizes!(@are ($self.axes) $slot $shape) && $crate::call::output_fits($slot, $dtype)) };
        shape_and_dtype() == Some(true)
            $(&& $crate::call::output_is_disjoint($slot, &$self.args.$same, true))*
            $(&& $crate::call::output_is_disjoint($slot, &$self.args.$any, false))*
            $(&& ($slot.device().is_host() $(|| $self.args.$given.is_some())*))?
    }};
    (
        $self:ident, $spec:ident, $fits:ident: $dtype:expr, $shape:tt,
        same $same:tt, any $any:tt $(, host $host:tt)?
    ) => {
        /// Shape and dtype of this output; `None` if they cannot be computed.
        #[inline]
        pub fn $spec(&$self) -> Option<($crate::call::Dims, $crate::call::DType)> {
            Some(($crate::sizes!(($self.axes), $shape), $dtype))
        }

        #[inline(always)]
        fn $fits(&$self, slot: &$crate::call::TensorMut<'_>) -> bool {
            $crate::output!(@fits $self, slot, $dtype, $shape, $same, $any $(, $host)?)
        }
    };
    (
        $self:ident, $spec:ident, $fits:ident if $when:expr; $dtype:expr, $shape:tt,
        same $same:tt, any $any:tt $(, host $host:tt)?
    ) => {
        /// Shape and dtype of this output; `None` if this call does not produce it.
        #[inline]
        pub fn $spec(&$self) -> Option<($crate::call::Dims, $crate::call::DType)> {
            if !$when {
                return None;
            }
            Some(($crate::sizes!(($self.axes), $shape), $dtype))
        }

        #[inline(always)]
        fn $fits(&$self, slot: Option<&$crate::call::TensorMut<'_>>) -> bool {
            match slot {
                Some(slot) => $when && $crate::output!(@fits $self, slot, $dtype, $shape, $same, $any $(, $host)?),
                None => !$when,
            }
        }
    };
}

/// Output slots, results and contexts of an operation.
#[doc(hidden)]
#[macro_export]
macro_rules! output_slots {
    (
        $info:ident, $call:ident, $out:ident, $output:ident;
        outputs($($slot:ident: $kind:ident = $doc:literal),* $(,)?);
        written($($written:ident: $written_kind:ident),* $(,)?) $(;)?
    ) => {
        /// Output slots that were checked against the call, then the inputs that are changed in place.
        pub struct $out<'a> {
            $(#[doc = $doc] pub $slot: $crate::slot!(@type 'a $kind),)*
            $(/// Changed in place: read and written through this tensor.
            pub $written: $crate::slot!(@type 'a $written_kind),)*
            checked: $crate::call::PhantomData<&'a mut ()>,
        }

        impl $out<'_> {
            /// The same slots for a shorter lifetime.
            #[inline(always)]
            pub fn reborrow(&mut self) -> $out<'_> {
                $out {
                    $($slot: $crate::slot!(@reborrow self.$slot, $kind),)*
                    $($written: $crate::slot!(@reborrow self.$written, $written_kind),)*
                    checked: $crate::call::PhantomData,
                }
            }

            /// As dynamic outputs.
            pub fn to_args(&mut self) -> [$crate::call::OutArg<'_>; { const NAMES: &[&str] = &[$(stringify!($slot)),*]; NAMES.len() }] {
                [$($crate::slot!(@arg $crate::slot!(@reborrow self.$slot, $kind), $kind)),*]
            }
        }

        /// Results in host memory of their own.
        #[derive(Debug)]
        pub struct $output {
            $(#[doc = $doc] pub $slot: $crate::slot!(@owned $kind),)*
        }

        $crate::output_methods!(
            $info, $call, $out;
            outputs($($slot: $kind),*);
            written($($written: $written_kind),*);
        );
    };
}

/// Contexts of a checked call, and the check of its output slots.
#[doc(hidden)]
#[macro_export]
macro_rules! output_methods {
    (
        $info:ident, $call:ident, $out:ident;
        outputs($($slot:ident: $kind:ident),* $(,)?);
        written($($written:ident: $written_kind:ident),* $(,)?) $(;)?
    ) => {
        impl<'c> $call<'c> {
            /// The context of this call if its outputs are allocated for it.
            #[inline]
            pub fn context(&self) -> $crate::call::Context {
                self.packed($($crate::slot!(@fresh $slot)),*)
            }

            /// The context of this call with these output slots.
            #[inline]
            #[allow(unused_variables, reason = "not every operation has outputs of known size")]
            pub fn context_with(&self, out: &$out<'_>) -> $crate::call::Context {
                self.packed($($crate::slot!(@class out.$slot, $kind)),*)
            }

            /// Checks the output slots.
            #[inline]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn outputs<'a>(&self, $($slot: $crate::slot!(@type 'a $kind)),*) -> Result<$out<'a>, $crate::call::Error>
            where
                'c: 'a,
            {
                let mut slots = None;
                self.outputs_in(&mut slots, $($slot),*)?;
                slots.ok_or_else(|| $crate::call::disagreement(&$info))
            }

            /// [`outputs`](Self::outputs) into storage of the caller's: the slots are too large to be moved on every call.
            #[inline(always)]
            #[allow(clippy::too_many_arguments, reason = "as many as the schema has")]
            pub fn outputs_in<'r, 'a>(
                &self,
                slots: &'r mut Option<$out<'a>>,
                $($slot: $crate::slot!(@type 'a $kind)),*
            ) -> Result<&'r mut $out<'a>, $crate::call::Error>
            where
                'c: 'a,
            {
                // SAFETY: the slots that were passed in are not used after this call.
                unsafe { self.outputs_at(slots, $($crate::slot!(@borrow $slot $kind)),*) }
            }

            /// [`outputs_in`](Self::outputs_in) for slots that stay where they are: nothing large is copied.
            ///
            /// # Safety
            /// The slots that are passed in are not used while `slots` contains something.
            #[inline(always)]
            #[allow(unused_unsafe, clippy::too_many_arguments, reason = "operations differ in their outputs")]
            pub unsafe fn outputs_at<'r, 'a>(
                &self,
                slots: &'r mut Option<$out<'a>>,
                $($slot: $crate::slot!(@borrowed 'a $kind)),*
            ) -> Result<&'r mut $out<'a>, $crate::call::Error>
            where
                'c: 'a,
            {
                if self.accepts($($crate::slot!(@seen $slot $kind)),*) {
                    // SAFETY: the caller does not use the slots as long as these exist.
                    Ok(slots.insert($out {
                        $($slot: $crate::slot!(@duplicate $slot $kind),)*
                        $($written: $crate::slot!(@alias self.args.$written, $written_kind),)*
                        checked: $crate::call::PhantomData,
                    }))
                } else {
                    // SAFETY: nothing is written through these.
                    Err(self.problems(Some(&[$($crate::slot!(@problem $slot $kind)),*])))
                }
            }
        }
    };
}

/// The trait of an operation's kernels, and how such a kernel enters the registry and is run.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_trait {
    (
        $name:literal, $info:ident, $args:ident, $call:ident, $out:ident, $kernel:ident, $handle:ident, $entry:ident;
        outputs($($slot:ident: $kind:ident),*) $(;)?
    ) => {
        #[doc = concat!("A kernel of `", $name, "`.")]
        pub trait $kernel: Send + Sync + 'static {
            /// Runs a checked call into checked output slots. Inputs that are changed in place are read and written through
            /// `out`.
            fn run(
                &self,
                call: &$call<'_>,
                out: $out<'_>,
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError>;

            /// This kernel and its spec as a registry entry.
            fn into_entry(self, spec: $crate::call::KernelSpec) -> $crate::call::KernelEntry
            where
                Self: Sized,
            {
                $entry(spec, self)
            }
        }

        /// A typed kernel in the registry.
        pub struct $handle(Box<dyn $kernel>);

        impl $crate::call::Kernel for $handle {
            fn as_any(&self) -> &dyn ::std::any::Any {
                self
            }

            fn run(
                &self,
                args: &mut [$crate::call::Arg<'_>],
                outputs: &mut [$crate::call::OutArg<'_>],
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError> {
                let Some(args) = $args::from_args(args) else {
                    let message = concat!("the arguments are not those of `", $name, "`");
                    return Err($crate::call::KernelError::failed(message));
                };
                let mut checked = None;
                let call = args.check_in(&mut checked).map_err($crate::call::KernelError::invalid)?;
                #[allow(unused_mut, unused_variables, reason = "operations without outputs read none")]
                let mut next = outputs.iter_mut();
                $(let $slot = $crate::slot!(@take next, $kind, $slot);)*
                let out = call.outputs($($slot),*).map_err($crate::call::KernelError::invalid)?;
                self.0.run(call, out, run)
            }
        }

        #[doc = concat!("A registry entry for a kernel of `", $name, "`.")]
        pub fn $entry(spec: $crate::call::KernelSpec, kernel: impl $kernel) -> $crate::call::KernelEntry {
            $crate::call::KernelEntry::new(spec, $handle(Box::new(kernel))).of(&$info)
        }

        impl $call<'_> {
            /// Runs it with this kernel: directly if it is typed, else with dynamic arguments.
            #[inline]
            pub fn run_kernel(
                &self,
                entry: &$crate::call::KernelEntry,
                mut out: $out<'_>,
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError> {
                match entry.typed::<$handle>() {
                    Some(handle) => handle.0.run(self, out, run),
                    None => entry.kernel.run(&mut self.to_args(), &mut out.to_args(), run),
                }
            }

            /// Runs it with a kernel of the caller's choice: no engine, no selection, the same instructions as calling the
            /// kernel. The call and the output slots were checked when they were created; a panic of the kernel reaches
            /// the caller.
            #[inline(always)]
            pub fn run_static<K: $kernel + ?Sized>(
                &self,
                kernel: &K,
                out: $out<'_>,
                scratch: &mut $crate::call::Scratch,
            ) -> Result<(), $crate::call::KernelError> {
                kernel.run(self, out, &mut $crate::call::Run::unbounded(scratch))
            }
        }
    };
}

/// The call and the kernels of an operation that is a special case of another one. The call is checked as a call of the
/// general operation whose axes are equal, and dereferences to that call. Expanded in a module inside that of the general
/// operation, whose private functions it uses.
#[doc(hidden)]
#[macro_export]
macro_rules! specialization {
    (
        $name:literal, $info:ident, $args:ident, $call:ident, $out:ident, $kernel:ident, $handle:ident, $entry:ident;
        number $number:literal of $general_args:ident, $general_call:ident, $general_kernel:ident;
        context($flags:literal, $axes:literal, $scalars:literal) without($($removed:literal),*);
        outputs($($slot:ident: $kind:ident),*);
        written($($written:ident: $written_kind:ident),*) $(;)?
    ) => {
        #[doc = concat!("A checked call of `", $name, "`, which is a call of the general operation.")]
        ///
        /// Only `check` creates one, so that kernels need not check anything.
        pub struct $call<'a>($general_call<'a>);

        impl<'a> $crate::call::Deref for $call<'a> {
            type Target = $general_call<'a>;
            #[inline(always)]
            fn deref(&self) -> &$general_call<'a> {
                &self.0
            }
        }

        impl<'a> $args<'a> {
            #[inline]
            fn bind<'r, 'c>(&'c self, checked: &'r mut Option<$call<'c>>) -> Option<&'r $call<'c>> {
                let general: *const $general_args<'c> = ::std::ptr::from_ref(self).cast();
                // SAFETY: arguments with different numbers are the same `repr(C)` structure.
                let general: &'c $general_args<'c> = unsafe { &*general };
                general.bind_as::<_, $number>(checked, $call)
            }
        }

        $crate::checks!($info, $args, $call);

        impl $call<'_> {
            #[cold]
            #[inline(never)]
            fn problems(&self, outputs: Option<&[$crate::call::OutArg<'_>]>) -> $crate::call::Error {
                match $crate::call::check_call($info.schema(), &self.args.to_args(), outputs) {
                    Err(error) => error,
                    Ok(_) => $crate::call::disagreement(&$info),
                }
            }

            /// The context from the stride classes of the outputs: that of the general operation without the replaced axes.
            #[inline(always)]
            fn packed(&self, $($slot: u64),*) -> $crate::call::Context {
                let words: [u64; $flags + $axes + $scalars] = $crate::call::without(self.words($($slot),*), [$($removed),*]);
                $crate::call::Context::packed($crate::call::Extent::new($flags, $axes, $scalars), words)
            }
        }

        $crate::output_methods!(
            $info, $call, $out;
            outputs($($slot: $kind),*);
            written($($written: $written_kind),*);
        );

        $crate::kernel_trait!(
            $name, $info, $args, $call, $out, $kernel, $handle, $entry;
            outputs($($slot: $kind),*);
        );

        impl<K: $general_kernel> $kernel for $crate::call::Specialized<K> {
            #[inline]
            fn run(
                &self,
                call: &$call<'_>,
                out: $out<'_>,
                run: &mut $crate::call::Run<'_>,
            ) -> Result<(), $crate::call::KernelError> {
                <K as $general_kernel>::run(&self.0, call, out, run)
            }
        }
    };
}
