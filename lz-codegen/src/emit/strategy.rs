//! The typed layer of the conformance suite: one file an operation that names it, asks its generated check, and has its tests.
//!
//! What calls are drawn is not generated: `lz-conformance` draws them from the schema at run time.

use lz_schema::model::{Kind, Operation};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::names::{OperationNames, ident};

/// One operation.
pub fn tokens(operation: &Operation) -> TokenStream {
    let OperationNames { args, info, .. } = OperationNames::of(operation);
    let title = format!(" `{}` under test.", operation.name);
    let locals: Vec<_> =
        operation.outputs.iter().map(|output| format_ident!("output_{}", output.name)).collect();
    let takes = operation.outputs.iter().zip(&locals).map(|(output, local)| {
        let take = match (output.kind, output.is_dynamic(operation)) {
            (Kind::Text, _) => quote! { crate::take::text },
            (_, true) => quote! { crate::take::dynamic },
            _ => quote! { crate::take::tensor },
        };
        let missing = (output.when.is_none()).then(|| quote! { ? });
        quote! { let #local = #take(next.next()).ok()? #missing; }
    });
    quote! {
        use lz_core::{Arg, OutArg};

        use crate::suite::{Checked, Subject};

        #[doc = #title]
        pub struct Operation;

        impl Subject for Operation {
            fn info(&self) -> &'static lz_core::OperationInfo { &lz_ops::#info }

            fn check(&self, args: &mut [Arg<'_>], outputs: Option<&mut [OutArg<'_>]>) -> Option<Checked> {
                let typed = lz_ops::#args::from_args(args)?;
                let call = match typed.check() {
                    Ok(call) => call,
                    Err(error) => return Some(Checked::Refused(error)),
                };
                let context = Box::new(call.context());
                let Some(outputs) = outputs else {
                    return Some(Checked::Right { context, outputs: None });
                };
                #[allow(unused_mut, unused_variables, reason = "operations without outputs take nothing")]
                let mut next = outputs.iter_mut();
                #(#takes)*
                let fit = call.outputs(#(#locals),*);
                let context = fit.as_ref().map_or(context, |out| Box::new(call.context_with(out)));
                Some(Checked::Right { context, outputs: Some(fit.map(drop)) })
            }
        }

        /// Valid calls, with values.
        pub fn valid() -> impl proptest::strategy::Strategy<Value = crate::valid::Drawn> {
            crate::strategy::valid(&lz_ops::#info)
        }

        /// Calls with exactly one thing wrong, and the reason that must come back.
        pub fn broken() -> impl proptest::strategy::Strategy<Value = crate::broken::Broken> {
            crate::strategy::broken(&lz_ops::#info)
        }

        /// The workloads of the schema as calls, by name, without the memory that they would need.
        pub fn workloads() -> Result<Vec<(&'static str, crate::call::OwnedCall)>, String> {
            crate::workload::calls(&crate::assign::Prepared::new(lz_ops::#info.schema()))
        }

        #[cfg(test)]
        mod tests {
            use super::Operation;

            #[test]
            fn metadata() { crate::suite::metadata(&Operation); }

            #[test]
            fn broken() { crate::suite::broken(&Operation); }

            #[test]
            fn context() { crate::suite::context(&Operation); }

            #[test]
            fn values() { crate::values::values(&Operation, crate::values::registered(), &crate::values::claims); }

            #[test]
            fn mutants() { crate::mutants::mutants(&Operation); }

            #[test]
            fn workloads() { crate::suite::workloads(&Operation); }
        }
    }
}

/// `generated/mod.rs`: every operation.
pub fn index(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    let docs = operations.iter().map(|operation| format!(" `{}`.", operation.name));
    let count = operations.len();
    quote! {
        #(#[doc = #docs] pub mod #modules;)*

        /// Every operation under test, by name.
        pub static SUBJECTS: [&dyn crate::suite::Subject; #count] = [#(&#modules::Operation),*];
    }
}
