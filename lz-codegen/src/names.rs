//! Names in the target languages, from schema names. Every emitter uses these, so that one thing has one name everywhere.

use lz_schema::model::Operation;
use proc_macro2::{Ident, Span};
use quote::format_ident;

/// `attention.mla.decode` → `AttentionMlaDecode`; also for `return_lse` → `ReturnLse` and `BSHD` → `Bshd`.
pub fn camel(name: &str) -> String {
    name.split(['.', '_', '-'])
        .map(|part| {
            let mut letters = part.chars();
            letters.next().map_or_else(String::new, |first| {
                first.to_uppercase().collect::<String>() + &letters.as_str().to_lowercase()
            })
        })
        .collect()
}

/// An identifier; Rust's keywords become raw.
pub fn ident(name: &str) -> Ident {
    if syn::parse_str::<Ident>(name).is_ok() {
        Ident::new(name, Span::call_site())
    } else {
        format_ident!("r#{}", name)
    }
}

/// Names of the items that are generated for one operation.
#[derive(Debug)]
pub struct OperationNames {
    /// `norm_rms`, the function.
    pub function: Ident,
    /// `norm_rms_into`.
    pub function_into: Ident,
    /// `NormRms`, the arguments.
    pub args: Ident,
    /// `NormRmsArguments`, the arguments of an operation and of its specializations.
    pub arguments: Ident,
    /// `NormRmsAxes`.
    pub axes: Ident,
    /// `NormRmsCall`, the checked call.
    pub call: Ident,
    /// `NormRmsOut`, the checked output slots.
    pub out: Ident,
    /// `NormRmsOutput`, owned results.
    pub output: Ident,
    /// `NormRmsKernel`, the trait.
    pub kernel: Ident,
    /// `NormRmsHandle`, a typed kernel in the registry.
    pub handle: Ident,
    /// `norm_rms_kernel`, creates a registry entry.
    pub entry: Ident,
    /// `NORM_RMS`, the static description.
    pub info: Ident,
}

impl OperationNames {
    /// Of an operation.
    pub fn of(operation: &Operation) -> OperationNames {
        let flat = operation.flat_name();
        let stem = camel(&operation.name);
        OperationNames {
            function: ident(&flat),
            function_into: format_ident!("{flat}_into"),
            args: format_ident!("{stem}"),
            arguments: format_ident!("{stem}Arguments"),
            axes: format_ident!("{stem}Axes"),
            call: format_ident!("{stem}Call"),
            out: format_ident!("{stem}Out"),
            output: format_ident!("{stem}Output"),
            kernel: format_ident!("{stem}Kernel"),
            handle: format_ident!("{stem}Handle"),
            entry: format_ident!("{flat}_kernel"),
            info: format_ident!("{}", flat.to_uppercase()),
        }
    }

    /// The Rust enum of an enum param.
    pub fn enumeration(operation: &str, param: &str) -> Ident {
        format_ident!("{}{}", camel(operation), camel(param))
    }
}

/// The field of a dtype variable in a checked call: `T` → `dtype_t`.
pub fn dtype_field(variable: &str) -> Ident {
    format_ident!("dtype_{}", variable.to_lowercase())
}

/// The field of a pack's sizes in the axes: `rows` → `rows_dims`.
pub fn pack_field(axis: &str) -> Ident {
    format_ident!("{axis}_dims")
}

/// Where the reference of an operation lives under `lz-ops/src/reference`: `attention.mla.decode` → `attention/mla_decode.rs`.
pub fn reference_path(operation: &str) -> String {
    match operation.split_once('.') {
        Some((family, rest)) => format!("{family}/{}.rs", rest.replace('.', "_")),
        None => format!("{operation}.rs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_language() {
        assert_eq!(camel("attention.mla.decode.paged"), "AttentionMlaDecodePaged");
        assert_eq!(camel("BSHD"), "Bshd");
        assert_eq!(camel("gelu_tanh"), "GeluTanh");
        assert_eq!(camel("fp8_e4m3"), "Fp8E4m3");
        assert_eq!(reference_path("attention.mla.decode"), "attention/mla_decode.rs");
        assert_eq!(reference_path("quantize"), "quantize.rs");
        assert_eq!(ident("type").to_string(), "r#type");
    }
}
