//! Macros that check a call before it runs.

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
