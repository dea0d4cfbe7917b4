//! Fast native kernels for host processors. Each implements a generated trait and declares honest limits; nothing here
//! knows Python or C++.

mod norm_rms;

use lz_core::KernelEntry;

/// Every kernel of this backend. An explicit list: registries that the linker fills vanish in static libraries.
pub fn kernels() -> Vec<KernelEntry> {
    vec![norm_rms::DenseRows.entry()]
}
