//! Engines for questions about another device: a preset, or a device of this machine, with the kernels of backends that are not
//! loaded in this process. Such an engine cannot run a call.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use lz_core::context::{FieldKind, device_bits};
use lz_core::descriptor::{self, Catalog, Descriptor, DescriptorError};
use lz_core::device::DeviceSpec;
use lz_core::fork::Mutex;
use lz_core::tensor::Device;
use lz_core::{
    Arg, Context, Kernel, KernelEntry, KernelError, OperationInfo, OutArg, Reason, ReasonCode, Run,
};
use lz_engine::Engine;
use lz_schema::model::{DeviceRule, Input, Kind};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::engine::engine;
use crate::error::raise;

/// A descriptor of a backend that is not loaded.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct DescribedBackend {
    /// The file name, for messages.
    path: String,
    /// The descriptor.
    text: String,
    /// Whether its kernels are the references of their platform.
    reference: bool,
    /// Why it cannot be used, with the command that installs it; `None` if it only has not been imported yet.
    missing: Option<String>,
    /// The code of that reason.
    code: String,
}

/// The kernel of a backend that is not loaded.
struct NotLoaded;

impl Kernel for NotLoaded {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], _: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        Err(KernelError::declined("the backend of this kernel is not loaded"))
    }
}

/// The name of a device of this machine.
fn place(device: &DeviceSpec) -> String {
    format!("{}:{}", device.platform(), device.index)
}

/// The device of this machine with this name: `cuda:0`, `cpu`.
fn own_device(name: &str) -> Option<DeviceSpec> {
    let mut found = lz_device::discover().devices.into_iter();
    found.find(|one| place(one) == name || place(one) == format!("{name}:0"))
}

/// The preset with this name: `h100`, also `h100-sxm`, because selection does not depend on the connector of a board.
fn preset(name: &str) -> PyResult<DeviceSpec> {
    let board = ["-sxm", "-pcie"].iter().find_map(|suffix| name.strip_suffix(suffix));
    lz_device::preset(board.unwrap_or(name)).map_err(|error| {
        let own: Vec<String> = lz_device::discover().devices.iter().map(place).collect();
        PyValueError::new_err(format!("{error}, or a device of this machine: {}", own.join(", ")))
    })
}

/// The device with this name: a device of this machine or a preset.
pub fn device(name: &str) -> PyResult<DeviceSpec> {
    own_device(name).map_or_else(|| preset(name), Ok)
}

/// Whether the name is that of a preset and not of a device of this machine. An unknown name is an error.
#[pyfunction]
fn is_simulated(name: &str) -> PyResult<bool> {
    if own_device(name).is_some() { Ok(false) } else { preset(name).map(|_| true) }
}

/// The engine that decides about calls on a device, and the device. Decisions for a device of this machine are those of the
/// engine of this process, so that they can be used in it; those for a preset come from an engine with these backends too.
pub fn deciding_engine(
    py: Python<'_>,
    name: Option<&str>,
    backends: Vec<DescribedBackend>,
) -> PyResult<(Engine, Option<Device>)> {
    let engine = engine()?;
    let Some(name) = name else { return Ok((engine.clone(), None)) };
    let on = |spec: &DeviceSpec| {
        let index = u16::try_from(spec.index).unwrap_or_default();
        Some(Device { platform: spec.platform(), index })
    };
    match own_device(name) {
        Some(own) => Ok((engine.clone(), on(&own))),
        None => {
            let spec = preset(name)?;
            let device = on(&spec);
            Ok((engine_on(py, engine, spec, backends)?, device))
        }
    }
}

/// Whether tensors of an operation can be on a device; texts are always on the host.
pub fn has_device(info: &OperationInfo) -> bool {
    let on_device = |input: &Input| input.kind == Kind::Tensor && input.device != DeviceRule::Host;
    info.schema().inputs.iter().any(on_device)
}

/// Moves a described call to a device.
pub fn move_to(info: &OperationInfo, context: &mut Context, device: Device) {
    let field = info.fields.iter().find(|field| field.kind == FieldKind::Device);
    if let Some(field) = field {
        context.set(field.store, device_bits(device));
    }
}

/// Descriptors by file name and text.
type Descriptors = HashMap<(String, String), Arc<Descriptor>>;

/// Every explanation needs the descriptors of all backends that are not installed, and reading one takes milliseconds.
static DESCRIPTORS: LazyLock<Mutex<Descriptors>> = LazyLock::new(Mutex::default);

/// Reads the descriptor of a backend, once in the life of the process.
fn read(backend: &DescribedBackend, catalog: &Catalog<'_>) -> Result<Arc<Descriptor>, DescriptorError> {
    let key = (backend.path.clone(), backend.text.clone());
    if let Some(found) = DESCRIPTORS.lock().get(&key) {
        return Ok(found.clone());
    }
    let read = Arc::new(descriptor::read(&backend.path, &backend.text, catalog)?);
    DESCRIPTORS.lock().insert(key, read.clone());
    Ok(read)
}

/// An engine with this device, and with the kernels of these backends.
pub fn engine_on(
    py: Python<'_>,
    engine: &Engine,
    device: DeviceSpec,
    backends: Vec<DescribedBackend>,
) -> PyResult<Engine> {
    let simulated = engine.with_device(device);
    let registry = simulated.registry();
    let catalog = Catalog::new(registry.operations().map(OperationInfo::schema));
    for backend in backends {
        let read = read(&backend, &catalog).map_err(|error| raise(py, &error.into()))?;
        let entry = |mut spec: lz_core::KernelSpec| {
            let info = registry.operation(&spec.operation)?;
            spec.reference = backend.reference;
            Some(KernelEntry::new(spec, NotLoaded).of(info))
        };
        let entries: Vec<KernelEntry> = read.kernels.iter().cloned().filter_map(entry).collect();
        simulated.register(entries).map_err(|error| raise(py, &error))?;
        if let Some(missing) = backend.missing {
            let code = ReasonCode::parse(&backend.code).unwrap_or(ReasonCode::NotInstalled);
            simulated.disable_backend(&read.backend, Reason::new(code).message(missing));
        }
    }
    Ok(simulated)
}

/// Adds the functions.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(is_simulated, module)?)
}
