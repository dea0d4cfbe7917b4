//! Engines for questions about another device: a preset, or a device of this machine, with the kernels of backends that are not
//! loaded in this process. Such an engine cannot run a call.

use std::any::Any;

use lz_core::descriptor::{self, Catalogue};
use lz_core::device::DeviceSpec;
use lz_core::{Arg, Kernel, KernelEntry, KernelError, OperationInfo, OutArg, Reason, ReasonCode, Run};
use lz_engine::Engine;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

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

/// The device with this name: a device of this machine (`cuda:0`, `cpu`) or a preset (`h100`, also `h100-sxm`).
pub fn device(name: &str) -> PyResult<DeviceSpec> {
    let found = lz_device::discover().devices;
    let place = |device: &DeviceSpec| format!("{}:{}", device.platform(), device.index);
    if let Some(device) = found.iter().find(|one| place(one) == name || place(one) == format!("{name}:0")) {
        return Ok(device.clone());
    }
    // Selection does not depend on the connector of a board.
    let board = ["-sxm", "-pcie"].iter().find_map(|suffix| name.strip_suffix(suffix));
    lz_device::preset(board.unwrap_or(name)).map_err(|error| {
        let own: Vec<String> = found.iter().map(place).collect();
        PyValueError::new_err(format!("{error}, or a device of this machine: {}", own.join(", ")))
    })
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
    let catalogue = Catalogue::new(registry.operations().map(OperationInfo::schema));
    for backend in backends {
        let read = descriptor::read(&backend.path, &backend.text, &catalogue)
            .map_err(|error| raise(py, &error.into()))?;
        let entry = |mut spec: lz_core::KernelSpec| {
            let info = registry.operation(&spec.operation)?;
            spec.reference = backend.reference;
            Some(KernelEntry::new(spec, NotLoaded).of(info))
        };
        let entries: Vec<KernelEntry> = read.kernels.into_iter().filter_map(entry).collect();
        simulated.register(entries).map_err(|error| raise(py, &error))?;
        if let Some(missing) = backend.missing {
            simulated.disable_backend(&read.backend, Reason::new(ReasonCode::NotInstalled).message(missing));
        }
    }
    Ok(simulated)
}
