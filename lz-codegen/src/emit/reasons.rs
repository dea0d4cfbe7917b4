//! The reason codes: the table from which `reason_codes!` expands the enums.

use lz_schema::reasons::Reasons;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::names::camel;

/// `ReasonCode` and `ReasonCategory`.
pub fn tokens(reasons: &Reasons) -> TokenStream {
    let mut categories: Vec<&str> = Vec::new();
    for reason in &reasons.codes {
        if !categories.contains(&reason.category.as_str()) {
            categories.push(&reason.category);
        }
    }
    let idents = categories.iter().map(|name| format_ident!("{}", camel(name)));
    let rows = reasons.codes.iter().map(|reason| {
        let (ident, category) =
            (format_ident!("{}", camel(&reason.code)), format_ident!("{}", camel(&reason.category)));
        let (code, sentence, help) = (&reason.code, reason.sentence.trim(), reason.help.trim());
        quote! { #ident = #code in #category: #sentence, #help; }
    });
    quote! {
        crate::reason_codes::reason_codes!(
            categories(#(#idents = #categories),*);
            #(#rows)*
        );
    }
}
