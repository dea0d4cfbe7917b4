//! Which device a call would run on. Devices are looked for when the first call needs one, once a process.

use std::sync::{Arc, OnceLock};

use lz_core::context::{Context, FieldKind, Store};
use lz_core::device::{DeviceSpec, GenerationTable, Platform};
use lz_core::operation::OperationInfo;
use lz_device::{Discovery, detect_cpu, discover_by};

/// Where devices come from.
#[derive(Debug, Clone, Default)]
pub(crate) enum Devices {
    /// This machine's own.
    #[default]
    Found,
    /// One that need not be there: every call is looked at as if it were on it, and nothing can be run.
    Imagined(Arc<DeviceSpec>),
}

impl Devices {
    /// The device of a call.
    pub fn of_call(&self, place: Option<Store>, context: &Context) -> Option<&DeviceSpec> {
        if let Devices::Imagined(device) = self {
            return Some(device);
        }
        let (platform, index) = place.map_or((Platform::Cpu as u64, 0), |store| {
            let bits = context.raw(store);
            (bits & 0b111, (bits >> 3) as u32)
        });
        let platform = Platform::ALL.into_iter().find(|known| *known as u64 == platform)?;
        if platform == Platform::Cpu {
            return Some(host());
        }
        found().devices.iter().find(|device| device.platform() == platform && device.index == index)
    }

    /// This signature, if one of the devices has it, else the signatures that there are.
    pub fn signature_like(&self, wanted: &str) -> String {
        let own = match self {
            Devices::Imagined(device) => return device.hardware_signature(),
            Devices::Found => host().hardware_signature(),
        };
        if own == wanted {
            return own;
        }
        let mut all = vec![own];
        all.extend(found().devices.iter().map(DeviceSpec::hardware_signature));
        all.dedup();
        if all.iter().any(|one| one == wanted) { wanted.to_owned() } else { all.join(" and ") }
    }

    /// Whether calls can be run.
    pub fn are_real(&self) -> bool {
        matches!(self, Devices::Found)
    }
}

pub(crate) fn host() -> &'static DeviceSpec {
    static HOST: OnceLock<DeviceSpec> = OnceLock::new();
    HOST.get_or_init(detect_cpu)
}

/// How the generations of GPUs are told apart; settled when devices are first looked for.
static GENERATIONS: OnceLock<GenerationTable> = OnceLock::new();

/// Says how generations are told apart. Only the first answer counts, and only before devices have been looked for.
pub(crate) fn describe_by(table: GenerationTable) {
    let shown = table.rows().len();
    if GENERATIONS.set(table).is_err() {
        tracing::debug!(
            rows = shown,
            "devices have been described already; gpu_generations acts in the next process"
        );
    }
}

pub(crate) fn found() -> &'static Discovery {
    static FOUND: OnceLock<Discovery> = OnceLock::new();
    FOUND.get_or_init(|| discover_by(GENERATIONS.get_or_init(GenerationTable::default)))
}

/// Where an operation's contexts say on which device the tensors are.
pub(crate) fn place_of(operation: &OperationInfo) -> Option<Store> {
    operation.fields.iter().find(|field| field.kind == FieldKind::Place).map(|field| field.store)
}
