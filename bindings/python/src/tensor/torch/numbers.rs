//! torch's numbers of dtypes and device types, as LayerZero's.

use lz_core::DType;
use lz_core::device::Platform;
use lz_core::tensor::{Device, MAX_RANK};
use pyo3::prelude::*;

use super::stable::Stable;

/// Upper limit of torch's dtype numbers.
const DTYPES: usize = 64;

/// The numbers of this torch.
#[derive(Clone)]
pub struct Numbers {
    /// LayerZero's dtype for each torch dtype number.
    dtypes: [Option<DType>; DTYPES],
    cpu: i32,
    cuda: i32,
    /// The platform that torch calls `cuda`.
    gpu: Platform,
}

impl Numbers {
    /// The numbers that torch's stable C ABI reports.
    pub fn find(torch: &Bound<'_, PyAny>, stable: &Stable) -> Option<Numbers> {
        let mut dtypes = [None; DTYPES];
        for dtype in DType::ALL {
            if let Some(entry) = stable.number(dtype).and_then(|number| dtypes.get_mut(number)) {
                *entry = Some(dtype);
            }
        }
        let (cpu, cuda) = stable.devices();
        let is_rocm = !torch.getattr("version").ok()?.getattr("hip").ok()?.is_none();
        let gpu = if is_rocm { Platform::Rocm } else { Platform::Cuda };
        Some(Numbers { dtypes, cpu, cuda, gpu })
    }

    /// The dtype and device of a tensor, if LayerZero has them and the rank is supported. `index` returns the
    /// device index and is called only for GPUs.
    #[inline]
    pub fn known(
        &self,
        dtype: i32,
        device: i32,
        rank: i64,
        index: impl FnOnce() -> Option<i32>,
    ) -> Option<(DType, Device)> {
        let dtype = self.dtypes.get(usize::try_from(dtype).ok()?).copied().flatten()?;
        let device = if device == self.cpu {
            Device::HOST
        } else if device == self.cuda {
            Device { platform: self.gpu, index: index()? as u16 }
        } else {
            return None;
        };
        (0..=MAX_RANK as i64).contains(&rank).then_some((dtype, device))
    }
}
