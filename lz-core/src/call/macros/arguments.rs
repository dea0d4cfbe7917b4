//! Macros for the arguments of a call: enum parameters, argument structs and their conversions.

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
