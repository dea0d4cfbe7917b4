//! The plugin ABI: records and structures of a hostile plugin, within memory that it owns, are refused or describe kernels.
//!
//! Input: decisions, a zero byte, then the descriptor's text.

use std::any::Any;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};

use lz_core::check::check_call;
use lz_core::tensor::MAX_RANK;
use lz_core::{Arg, ReasonCode};
use lz_engine::Engine;
use lz_plugin::abi::{self, Run, Status, Tensor};
use lz_plugin::generated::norm_rms::{NormRmsArgs, NormRmsOutputSlots};
use lz_plugin::loader::library::{KernelRecord, PluginRecord, kernels_of};
use lz_plugin::native::Vtable;

use crate::choices::Choices;

/// Elements of the memory that hostile tensors name. Their metadata is validated; nothing is read.
const ELEMENTS: usize = 16;

pub fn run(input: &[u8]) -> bool {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let (decisions, descriptor) = (&input[..end], input.get(end + 1..).unwrap_or_default());
    let mut choices = Choices::new(decisions);
    if choices.flag() { records(&mut choices, descriptor) } else { tensors(&mut choices) }
}

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let kernels = lz_ops::reference_kernels::kernels();
        Engine::with_kernels(kernels).unwrap_or_else(|error| panic!("{error}"))
    })
}

unsafe extern "C" fn never_called(
    _: *mut c_void,
    _: *const NormRmsArgs,
    _: *const NormRmsOutputSlots,
    _: *mut Run,
) -> Status {
    abi::FAILED
}

/// The records that `lz_plugin_init` fills in.
fn records(choices: &mut Choices<'_>, descriptor: &[u8]) -> bool {
    // The descriptor ends at its first zero byte, and may be no UTF-8.
    let text =
        CString::new(descriptor.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default();
    let vtable = Box::new(Vtable::<NormRmsArgs, NormRmsOutputSlots> {
        size: *choices.pick(&[size_of::<Vtable<NormRmsArgs, NormRmsOutputSlots>>(), 0, 8, 24, 1 << 20]),
        context: null_mut(),
        workspace: None,
        run: if choices.flag() { Some(never_called) } else { None },
        release: None,
    });
    // A vtable that states fewer bytes than a pointer to `run` has none.
    let names = [c"c.norm.rms", c"norm.rms", c"norm.layer", c"", c"\xff\xfe"].map(|name| name.as_ptr());
    let kernel = |choices: &mut Choices<'_>| KernelRecord {
        size: *choices.pick(&[size_of::<KernelRecord>(), 0, 16, 39, usize::MAX, 1 << 40]),
        id: *choices.pick(&[names[0], names[1], names[3], names[4], null()]),
        operation: *choices.pick(&[names[1], names[2], names[3], names[4], null()]),
        operation_version: *choices.pick(&[1, 0, u32::MAX]),
        vtable: if choices.below(4) == 3 { null() } else { (&raw const *vtable).cast() },
    };
    let kernels: Vec<KernelRecord> = (0..choices.below(4)).map(|_| kernel(choices)).collect();
    let record = PluginRecord {
        size: size_of::<PluginRecord>(),
        descriptor: if choices.below(8) == 7 { null() } else { text.as_ptr() },
        kernels: if kernels.is_empty() { null() } else { kernels.as_ptr() },
        // A count beyond the records would be a lie about memory, which nothing can detect; one beyond the limit is refused.
        kernel_count: if choices.below(8) == 7 { usize::MAX } else { kernels.len() },
        teardown: None,
    };
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(());
    let path = Path::new("hostile.so");
    // SAFETY: all pointers are null or valid while the result lives, records have the size of the structure unless they state another one
    // that is refused, and no kernel is called.
    match unsafe { kernels_of(&record, &owner, engine(), path) } {
        Ok((descriptor, entries)) => {
            assert_eq!(descriptor.kernels.len(), entries.len());
            true
        }
        Err(error) => {
            assert!(!error.reasons().is_empty() && error.to_string().contains("hostile.so"), "{error}");
            false
        }
    }
}

/// Arguments of a call in C layout, with any metadata: the conversion refuses them, or both checks agree on the call.
fn tensors(choices: &mut Choices<'_>) -> bool {
    let mut memory = [0.5f32; ELEMENTS];
    let mut tensor = || {
        let mut shape = [0; MAX_RANK];
        shape.iter_mut().for_each(|size| *size = choices.size());
        let mut strides = [0; MAX_RANK];
        strides.iter_mut().for_each(|stride| *stride = choices.size());
        Tensor {
            data: memory.as_mut_ptr().cast(),
            shape,
            strides,
            rank: u32::from(choices.byte() % 12),
            dtype: choices.byte() % 20,
            platform: choices.byte() % 8,
            device: u16::from(choices.byte() % 3),
        }
    };
    let (x, weight) = (tensor(), tensor());
    let args = NormRmsArgs {
        size: size_of::<NormRmsArgs>(),
        given: choices.word(),
        x: if choices.below(8) == 7 { null() } else { &raw const x },
        weight: if choices.flag() { null() } else { &raw const weight },
        eps: f32::from_bits(choices.word() as u32),
        weight_offset: f32::from_bits(choices.word() as u32),
    };
    // SAFETY: null or structures of their kind; checks read metadata only.
    let outcome = unsafe {
        args.with_views(|typed| {
            let generated = typed.check().map(drop);
            let dynamic: &[Arg<'_>] = &typed.to_args();
            let interpreted = check_call(lz_ops::NORM_RMS.schema(), dynamic, None).map(drop);
            assert_eq!(
                generated.is_ok(),
                interpreted.is_ok(),
                "{generated:?}, interpreted {interpreted:?}\n{x:?}"
            );
            generated.is_ok()
        })
    };
    outcome.unwrap_or_else(|reason| {
        let known = [
            ReasonCode::RankMismatch,
            ReasonCode::DtypeUnsupported,
            ReasonCode::DeviceAbsent,
            ReasonCode::MissingArgument,
        ];
        assert!(known.contains(&reason.code), "{reason}");
        false
    })
}
