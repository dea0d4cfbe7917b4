//! Maps calls to devices. Devices are detected once per process, when a call first needs one.

use std::sync::{Arc, OnceLock};

use lz_core::context::{Context, FieldKind, Store};
use lz_core::device::{DeviceDetail, DeviceSpec, GenerationTable, MetalSpec, Platform, Vendor, XpuSpec};
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
        let bits = field.map_or(Platform::Cpu as u64, |store| context.raw(store));
        if bits & PLATFORM_BITS == Platform::Cpu as u64 {
            return Some(host());
        }
        with_bits(&detected().devices, bits).or_else(|| unprobed(bits))
    }

    /// `wanted` if a device has that hardware signature, otherwise the signatures of all devices.
    pub fn signature_like(&self, wanted: &str) -> String {
        let own = match self {
            Devices::Simulated(device) => return device.hardware_signature(),
            Devices::Detected => host().hardware_signature(),
        };
        // Devices are detected only if needed.
        if own == wanted { own } else { one_of(own, &detected().devices, wanted) }
    }

    /// Whether calls can be run.
    pub fn are_real(&self) -> bool {
        matches!(self, Devices::Detected)
    }
}

/// The bits of a context field that hold the platform of a device; its index follows.
const PLATFORM_BITS: u64 = 0b111;

/// The platform and the index of a device.
fn split_bits(bits: u64) -> (u64, u32) {
    (bits & PLATFORM_BITS, (bits >> 3) as u32)
}

/// The device that the bits of a context field name.
fn with_bits(devices: &[DeviceSpec], bits: u64) -> Option<&DeviceSpec> {
    let (platform, index) = split_bits(bits);
    devices.iter().find(|device| device.platform() as u64 == platform && device.index == index)
}

/// `wanted` if it is the host's signature or that of a device, otherwise all signatures.
fn one_of(host: String, devices: &[DeviceSpec], wanted: &str) -> String {
    let mut all = vec![host];
    all.extend(devices.iter().map(DeviceSpec::hardware_signature));
    all.dedup();
    if all.iter().any(|one| one == wanted) { wanted.to_owned() } else { all.join(" and ") }
}

/// Maximum number of devices of a platform that is not probed.
const UNPROBED_DEVICES: usize = 64;

/// A GPU of a platform that detection does not probe: a tensor in its memory proves that it exists, and nothing else is known of it.
fn unprobed(bits: u64) -> Option<&'static DeviceSpec> {
    static XPU: [OnceLock<DeviceSpec>; UNPROBED_DEVICES] = [const { OnceLock::new() }; UNPROBED_DEVICES];
    static METAL: [OnceLock<DeviceSpec>; UNPROBED_DEVICES] = [const { OnceLock::new() }; UNPROBED_DEVICES];
    let (platform, index) = split_bits(bits);
    let mut known = [(Platform::Xpu, &XPU), (Platform::Metal, &METAL)].into_iter();
    let (platform, cells) = known.find(|(known, _)| *known as u64 == platform)?;
    Some(cells.get(usize::try_from(index).ok()?)?.get_or_init(|| unknown_gpu(platform, index)))
}

fn unknown_gpu(platform: Platform, index: u32) -> DeviceSpec {
    let unknown = || "unknown".to_owned();
    let (vendor, detail) = match platform {
        Platform::Xpu => {
            let detail = XpuSpec {
                architecture: unknown(),
                execution_units: 0,
                memory_bytes: 0,
                xmx: false,
                driver_version: String::new(),
                runtime_version: String::new(),
            };
            (Vendor::Intel, DeviceDetail::Xpu(detail))
        }
        _ => {
            let detail =
                MetalSpec { gpu_family: unknown(), cores: 0, memory_bytes: 0, os_version: String::new() };
            (Vendor::Apple, DeviceDetail::Metal(detail))
        }
    };
    DeviceSpec {
        name: format!("{platform} device {index}, not probed"),
        vendor,
        uuid: format!("unprobed-{platform}-{index}"),
        index,
        detail,
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

#[cfg(test)]
mod tests {
    use super::*;
    use lz_core::context::device_bits;
    use lz_core::tensor::Device;

    fn gpu(preset: &str, index: u32) -> DeviceSpec {
        DeviceSpec { index, ..lz_device::preset(preset).expect("a preset") }
    }

    #[test]
    fn calls_are_mapped_to_the_device_of_their_tensors() {
        let devices = [gpu("h100", 0), gpu("a100", 1)];
        let name = |platform, index| {
            with_bits(&devices, device_bits(Device { platform, index })).map(|device| device.name.as_str())
        };
        assert_eq!(name(Platform::Cuda, 0), Some(devices[0].name.as_str()));
        assert_eq!(name(Platform::Cuda, 1), Some(devices[1].name.as_str()));
        assert_eq!(name(Platform::Cuda, 2), None);
        assert_eq!(name(Platform::Rocm, 0), None);
    }

    #[test]
    fn calls_without_a_device_and_on_the_host_run_on_the_host() {
        let schema = "operation: demo.copy\nversion: 1\nsummary: Copies.\ndoc: output = x\n\
                      axes: { n: { role: length, select: exact, fuzz: 1..4 } }\ntypes: { T: [f32] }\n\
                      inputs: { x: { shape: [n], dtype: T, doc: Numbers. } }\n\
                      outputs: { output: { shape: [n], dtype: T } }\nsemantics: { nan: propagate }\n\
                      equivalence: { exact: true }\nworkloads: { small: { n: 4, T: f32 } }\n";
        let operation = lz_core::dynamic::read_operation("demo/copy.yaml", schema)
            .unwrap_or_else(|error| panic!("{error}"));
        let field = device_store(operation);
        assert!(field.is_some(), "tensors have a device");
        let mut context = Context::of(&operation.fields);
        let is_host = |field, context: &Context| {
            Devices::Detected.of_call(field, context).is_some_and(|device| std::ptr::eq(device, host()))
        };
        assert!(is_host(None, &context) && is_host(field, &context));
        let absent = device_bits(Device { platform: Platform::Rocm, index: 7 });
        assert!(field.is_some_and(|store| context.replace(store, absent)));
        assert!(!is_host(field, &context));
    }

    #[test]
    fn a_signature_is_that_of_the_host_or_of_a_device() {
        let devices = [gpu("h100", 0), gpu("h100", 1), gpu("a100", 2)];
        let [h100, _, a100] = &devices;
        let (h100, a100) = (h100.hardware_signature(), a100.hardware_signature());
        let like = |wanted: &str| one_of("host".to_owned(), &devices, wanted);
        assert_eq!([like("host"), like(&h100), like(&a100)], ["host".to_owned(), h100.clone(), a100.clone()]);
        assert_eq!(like("another"), format!("host and {h100} and {a100}"));
    }

    #[test]
    fn only_platforms_that_are_not_probed_have_devices_by_their_tensors() {
        let of = |platform, index| unprobed(device_bits(Device { platform, index }));
        for (platform, index) in [(Platform::Xpu, 0), (Platform::Xpu, 3), (Platform::Metal, 0)] {
            let device = of(platform, index).unwrap();
            assert_eq!((device.platform(), device.index), (platform, u32::from(index)));
            assert!(std::ptr::eq(device, of(platform, index).unwrap()));
        }
        assert!(of(Platform::Cuda, 0).is_none() && of(Platform::Rocm, 0).is_none());
        assert!(of(Platform::Xpu, 64).is_none());
    }
}
