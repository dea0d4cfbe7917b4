//! The reason codes as a Rust enum.

use lz_schema::reasons::Reasons;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use super::doc;
use crate::names::camel;

/// `ReasonCode` and `ReasonCategory`.
pub fn tokens(reasons: &Reasons) -> TokenStream {
    let idents: Vec<_> =
        reasons.codes.iter().map(|reason| format_ident!("{}", camel(&reason.code))).collect();
    let codes: Vec<&str> = reasons.codes.iter().map(|reason| reason.code.as_str()).collect();
    let docs = reasons.codes.iter().map(|reason| doc(&reason.sentence));
    let sentences = reasons.codes.iter().map(|reason| reason.sentence.trim());
    let helps = reasons.codes.iter().map(|reason| match reason.help.trim() {
        "" => quote! { None },
        help => quote! { Some(#help) },
    });
    let mut categories: Vec<String> = Vec::new();
    for reason in &reasons.codes {
        let name = reason.category.clone();
        if !categories.contains(&name) {
            categories.push(name);
        }
    }
    let category_idents: Vec<_> = categories.iter().map(|name| format_ident!("{}", camel(name))).collect();
    let category_docs = categories.iter().map(|name| format!(" `{name}`."));
    let category_of = reasons.codes.iter().map(|reason| format_ident!("{}", camel(&reason.category)));
    let count = codes.len();
    quote! {
        /// Why a call was refused or a kernel was not chosen.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ReasonCode { #(#docs #idents,)* }

        /// What a reason is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ReasonCategory { #(#[doc = #category_docs] #category_idents,)* }

        impl ReasonCode {
            /// Every code.
            pub const ALL: [ReasonCode; #count] = [#(ReasonCode::#idents,)*];

            /// The code as people write it.
            pub const fn as_str(self) -> &'static str {
                match self { #(ReasonCode::#idents => #codes,)* }
            }

            /// What it means.
            pub const fn sentence(self) -> &'static str {
                match self { #(ReasonCode::#idents => #sentences,)* }
            }

            /// What to do about it.
            pub const fn help(self) -> Option<&'static str> {
                match self { #(ReasonCode::#idents => #helps,)* }
            }

            /// What it is about.
            pub const fn category(self) -> ReasonCategory {
                match self { #(ReasonCode::#idents => ReasonCategory::#category_of,)* }
            }

            /// The code with this spelling.
            pub fn parse(text: &str) -> Option<ReasonCode> {
                ReasonCode::ALL.into_iter().find(|code| code.as_str() == text)
            }
        }

        impl ReasonCategory {
            /// The name as `reasons.yaml` has it.
            pub const fn name(self) -> &'static str {
                match self { #(ReasonCategory::#category_idents => #categories,)* }
            }
        }

        impl ::core::fmt::Display for ReasonCode {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    }
}
