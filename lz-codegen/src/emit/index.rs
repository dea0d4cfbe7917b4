//! The list of all operations, and the reference of each as a kernel.

use lz_schema::model::Operation;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

use crate::names::{OperationNames, ident, reference_path};

/// `generated/mod.rs`: one module an operation, and all their descriptions.
pub fn modules(operations: &[Operation]) -> TokenStream {
    let modules: Vec<_> = operations.iter().map(|operation| ident(&operation.flat_name())).collect();
    let docs = operations.iter().map(|operation| format!(" `{}`: {}", operation.name, operation.summary));
    let infos = operations.iter().map(|operation| OperationNames::of(operation).info);
    let count = operations.len();
    quote! {
        #(#[doc = #docs] pub mod #modules;)*
        /// The reference of every operation as a kernel.
        pub mod reference_kernels;

        #(pub use #modules::*;)*

        /// Every operation of the catalogue, by name.
        pub static OPERATIONS: [&::lz_core::OperationInfo; #count] = [#(&#modules::#infos),*];
    }
}

/// `generated/reference_kernels.rs`: the hand-written references, found by their path, as kernels.
pub fn references(operations: &[Operation]) -> TokenStream {
    let mut modules = Vec::new();
    let mut entries = Vec::new();
    for operation in operations {
        let names = OperationNames::of(operation);
        let (call, out, kernel, entry) = (&names.call, &names.out, &names.kernel, &names.entry);
        let module = ident(&operation.flat_name());
        let path = format!("../reference/{}", reference_path(&operation.name));
        let docs = format!(" Reference of `{}`.", operation.name);
        modules.push(quote! { #[doc = #docs] #[path = #path] #[rustfmt::skip] pub mod #module; });
        let id = format!("reference.{}", operation.name);
        let name = &operation.name;
        let marker = format_ident!("Reference{}", names.args);
        entries.push(quote! {
            {
                struct #marker;
                impl super::#kernel for #marker {
                    fn run(
                        &self,
                        call: &super::#call<'_>,
                        out: super::#out<'_>,
                        _run: &mut ::lz_core::Run<'_>,
                    ) -> Result<(), ::lz_core::KernelError> {
                        #module::run(call, out)
                    }
                }
                super::#entry(reference_spec(#id, #name), #marker)
            }
        });
    }
    quote! {
        #(#modules)*

        fn reference_spec(id: &str, operation: &str) -> ::lz_core::KernelSpec {
            let mut spec = ::lz_core::KernelSpec::new(
                id, operation, "reference", env!("CARGO_PKG_VERSION"), ::lz_core::device::Platform::Cpu,
            );
            spec.reference = true;
            spec.deterministic = true;
            spec.tp_invariant = true;
            spec
        }

        /// The reference of every operation, as kernels of priority 0.
        pub fn kernels() -> Vec<::lz_core::KernelEntry> {
            vec![#(#entries),*]
        }
    }
}
