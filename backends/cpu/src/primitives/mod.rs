//! Kernels of the primitives of graphs (`lz_primitives`): dynamic arguments, any strides. `runs` collapses dimensions and iterates,
//! `block` converts elements, `lanes` has the elementwise functions. Kernels check their arguments: graphs call them directly.

mod block;
mod conv;
mod conv_direct;
mod copy;
mod elementwise;
mod integers;
mod lanes;
mod math;
mod matmul;
mod movement;
mod reduce;
mod rows;
mod runs;
mod search;
mod skinny;
mod softmax;
mod window;

use std::any::Any;

use lz_core::device::Platform;
use lz_core::{Arg, DType, Kernel, KernelEntry, KernelError, KernelSpec, OperationInfo, OutArg, Run};
use lz_primitives::call::Call;

use crate::isa::{require, variant};
use crate::simd::{Scalar, Simd};

/// A kernel compiled for `S`.
struct Native<S> {
    run: fn(S, Call<'_, '_>, &mut [OutArg<'_>], &mut Run<'_>) -> Result<(), KernelError>,
}

impl<S: Simd> Kernel for Native<S> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(
        &self,
        args: &mut [Arg<'_>],
        outputs: &mut [OutArg<'_>],
        run: &mut Run<'_>,
    ) -> Result<(), KernelError> {
        (self.run)(require::<S>()?, Call::new(args), outputs, run)
    }
}

fn spec(operation: &OperationInfo) -> KernelSpec {
    let (id, version) = (format!("cpu.{}", operation.name), env!("CARGO_PKG_VERSION"));
    let mut spec = KernelSpec::new(&id, &operation.name, "cpu", version, Platform::Cpu).priority(60);
    spec.deterministic = true;
    spec
}

/// Entries of a kernel that has no vectorized inner loops.
macro_rules! plain {
    ($($operation:ident => $module:ident::$run:ident;)*) => {
        [$(KernelEntry::new(spec(&lz_primitives::$operation), Native::<Scalar> { run: $module::$run::<Scalar> })
            .of(*lz_primitives::$operation)),*]
    };
}

/// Entries of kernels for every instruction set of this target, each with changes to its spec and what prepares its constants.
macro_rules! vectorized {
    ($(
        $operation:ident => $module:ident::$run:ident $(, |$spec:ident| $change:expr)? $(, prepare $from:ident::$prepare:ident)?;
    )*) => {{
        let mut entries: Vec<KernelEntry> = Vec::new();
        $({
            #[allow(unused_mut, reason = "most specs are not changed")]
            let mut spec = spec(&lz_primitives::$operation);
            $({
                let $spec = &mut spec;
                $change;
            })?
            #[cfg(target_arch = "x86_64")]
            {
                use crate::simd::{Avx2, Avx512};
                let wide = KernelEntry::new(spec.clone(), Native::<Avx512> { run: $module::$run::<Avx512> });
                $(let wide = wide.prepared_by($from::$prepare::<Avx512>(std::marker::PhantomData));)?
                entries.push(variant::<Avx512>(wide.of(*lz_primitives::$operation)));
                let wide = KernelEntry::new(spec.clone(), Native::<Avx2> { run: $module::$run::<Avx2> });
                $(let wide = wide.prepared_by($from::$prepare::<Avx2>(std::marker::PhantomData));)?
                entries.push(variant::<Avx2>(wide.of(*lz_primitives::$operation)));
            }
            #[cfg(target_arch = "aarch64")]
            {
                use crate::simd::Neon;
                let wide = KernelEntry::new(spec.clone(), Native::<Neon> { run: $module::$run::<Neon> });
                $(let wide = wide.prepared_by($from::$prepare::<Neon>(std::marker::PhantomData));)?
                entries.push(variant::<Neon>(wide.of(*lz_primitives::$operation)));
            }
            let entry = KernelEntry::new(spec, Native::<Scalar> { run: $module::$run::<Scalar> });
            entries.push(variant::<Scalar>(entry.of(*lz_primitives::$operation)));
        })*
        entries
    }};
}

/// Every kernel of the primitives.
pub(crate) fn kernels() -> Vec<KernelEntry> {
    let narrow = || vec![("T".to_owned(), vec![DType::F32, DType::F16, DType::BF16])];
    let mut kernels = vectorized! {
        ACTIVATION => elementwise::activation;
        BINARY => elementwise::binary;
        BINARY_SCALAR => elementwise::binary_scalar;
        CAST => movement::cast;
        COMPARE => integers::compare;
        COMPARE_SCALAR => integers::compare_scalar;
        CONV2D => conv::conv2d, |spec| {
            spec.dtypes = narrow();
            spec.workspace = Some(conv::WORKSPACE.to_owned());
        }, prepare conv_direct::PackKernels;
        COPY => copy::copy;
        MATMUL => matmul::matmul, |spec| spec.workspace = Some(matmul::WORKSPACE.to_owned());
        POOL2D => window::pool2d, |spec| spec.dtypes = narrow();
        REDUCE => reduce::reduce;
        SOFTMAX => softmax::softmax;
        UNARY => elementwise::unary;
        WHERE => integers::select;
        ARG_REDUCE => search::arg_reduce;
    };
    kernels.extend(plain! {
        ARANGE => movement::arange;
        BINARY_INT => integers::binary_int;
        BINARY_INT_SCALAR => integers::binary_int_scalar;
        CUMSUM => search::cumsum;
        GATHER => movement::gather;
        GATHER_ELEMENTS => movement::gather_elements;
        REDUCE_INT => reduce::reduce_int;
        SCATTER => movement::scatter;
        SCATTER_ELEMENTS => movement::scatter_elements;
        TEST => integers::test;
        UNARY_INT => integers::unary_int;
    });
    let mut topk = spec(&lz_primitives::TOPK);
    topk.workspace = Some("16 * n".to_owned());
    let run = Native::<Scalar> { run: search::topk::<Scalar> };
    kernels.push(KernelEntry::new(topk, run).of(*lz_primitives::TOPK));
    kernels
}
