//! Maps calls to devices. Devices are detected once per process, when a call first needs one.

use std::sync::{Arc, OnceLock};

use lz_core::context::{Context, FieldKind, Store};
use lz_core::device::{DeviceSpec, GenerationTable, Platform};
use lz_core::operation::OperationInfo;
use lz_device::{Discovery, detect_cpu, discover_by};

/// The source of devices.
#[derive(Debug, Clone, Default)]
pub(crate) enum Devices {
    /// The devices of this machine.
    #[default]
    Detected,
    /// A simulated device: every call is treated as running on it, and no call can run.
    Simulated(Arc<DeviceSpec>),
}

impl Devices {
    /// The device of a call.
    pub fn of_call(&self, field: Option<Store>, context: &Context) -> Option<&DeviceSpec> {
        if let Devices::Simulated(device) = self {
            return Some(device);
        }
        let (platform, index) = field.map_or((Platform::Cpu as u64, 0), |store| {
            let bits = context.raw(store);
            (bits & 0b111, (bits >> 3) as u32)
        });
        let platform = Platform::ALL.into_iter().find(|known| *known as u64 == platform)?;
        if platform == Platform::Cpu {
            return Some(host());
        }
        detected().devices.iter().find(|device| device.platform() == platform && device.index == index)
    }

    /// `wanted` if a device has that hardware signature, otherwise the signatures of all devices.
    pub fn signature_like(&self, wanted: &str) -> String {
        let own = match self {
            Devices::Simulated(device) => return device.hardware_signature(),
            Devices::Detected => host().hardware_signature(),
        };
        if own == wanted {
            return own;
        }
        let mut all = vec![own];
        all.extend(detected().devices.iter().map(DeviceSpec::hardware_signature));
        all.dedup();
        if all.iter().any(|one| one == wanted) { wanted.to_owned() } else { all.join(" and ") }
    }

    /// Whether calls can be run.
    pub fn are_real(&self) -> bool {
        matches!(self, Devices::Detected)
    }
}

pub(crate) fn host() -> &'static DeviceSpec {
    static HOST: OnceLock<DeviceSpec> = OnceLock::new();
    HOST.get_or_init(detect_cpu)
}

/// The table of GPU generations; fixed when devices are first detected.
static GENERATIONS: OnceLock<GenerationTable> = OnceLock::new();

/// Sets the table of GPU generations. Only the first call has an effect, and only before devices are detected.
pub(crate) fn set_generation_table(table: GenerationTable) {
    let shown = table.rows().len();
    if GENERATIONS.set(table).is_err() {
        tracing::debug!(
            target: "lz::device", rows = shown,
            "devices are already detected; gpu_generations takes effect in the next process"
        );
    }
}

pub(crate) fn detected() -> &'static Discovery {
    static DETECTED: OnceLock<Discovery> = OnceLock::new();
    DETECTED.get_or_init(|| discover_by(GENERATIONS.get_or_init(GenerationTable::default)))
}

/// The context field that holds the device of an operation's tensors.
pub(crate) fn device_store(operation: &OperationInfo) -> Option<Store> {
    operation.fields.iter().find(|field| field.kind == FieldKind::Device).map(|field| field.store)
}
