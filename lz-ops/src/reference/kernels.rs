//! The references as kernels: one macro that generated code expands with a row per operation.

use lz_core::KernelSpec;
use lz_core::device::Platform;

/// The spec of a reference: priority 0, and equal results in every mode.
pub(crate) fn spec(id: &str, operation: &str) -> KernelSpec {
    let mut spec = KernelSpec::new(id, operation, "reference", env!("CARGO_PKG_VERSION"), Platform::Cpu);
    spec.reference = true;
    spec.deterministic = true;
    spec.tp_invariant = true;
    spec.batch_invariant = true;
    spec
}

/// `kernels`: every reference as a registry entry.
macro_rules! references {
    ($($name:literal => $module:ident($kernel:ident, $call:ident, $out:ident) $entry:ident;)*) => {
        /// The reference of every operation, as kernels of priority 0.
        pub fn kernels() -> Vec<::lz_core::KernelEntry> {
            vec![$({
                struct Reference;
                impl super::$kernel for Reference {
                    fn run(
                        &self,
                        call: &super::$call<'_>,
                        out: super::$out<'_>,
                        _run: &mut ::lz_core::Run<'_>,
                    ) -> Result<(), ::lz_core::KernelError> {
                        $module::run(call, out)
                    }
                }
                super::$entry(crate::reference::kernels::spec(concat!("reference.", $name), $name), Reference)
            }),*]
        }
    };
}

pub(crate) use references;
