//! The reason codes as enums: one macro that generated code expands with a row per code.

macro_rules! reason_codes {
    (
        categories($($category:ident = $category_name:literal),*);
        $($code:ident = $spelling:literal in $code_category:ident: $sentence:literal, $help:literal;)*
    ) => {
        /// Why a call was refused or a kernel was not selected.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ReasonCode {
            $(#[doc = $sentence] $code,)*
        }

        /// The subject of a reason.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ReasonCategory {
            $(#[doc = concat!("`", $category_name, "`.")] $category,)*
        }

        impl ReasonCode {
            /// Every code.
            pub const ALL: [ReasonCode; { const NAMES: &[&str] = &[$($spelling),*]; NAMES.len() }] = [$(ReasonCode::$code),*];

            /// The code as it is spelled in messages and files.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(ReasonCode::$code => $spelling,)*
                }
            }

            /// Its meaning.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(ReasonCode::$code => $sentence,)*
                }
            }

            /// What to do about it.
            pub const fn help(self) -> Option<&'static str> {
                let help = match self {
                    $(ReasonCode::$code => $help,)*
                };
                if help.is_empty() { None } else { Some(help) }
            }

            /// Its category.
            pub const fn category(self) -> ReasonCategory {
                match self {
                    $(ReasonCode::$code => ReasonCategory::$code_category,)*
                }
            }

            /// The code with this spelling.
            pub fn parse(text: &str) -> Option<ReasonCode> {
                ReasonCode::ALL.into_iter().find(|code| code.as_str() == text)
            }
        }

        impl ReasonCategory {
            /// The name in `reasons.yaml`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ReasonCategory::$category => $category_name,)*
                }
            }
        }

        impl ::core::fmt::Display for ReasonCode {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use reason_codes;
