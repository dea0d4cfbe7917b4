//! Registered operations, kernels and backends. Immutable; a change creates a new registry.
//!
//! A registry only contains kernels whose specs fit their operations. Nothing here depends on a call, a device or a policy.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use lz_schema::model::{Constant, DeviceRule, Input, Kind};

use crate::compiled::{self, CompiledKernel};
use lz_core::context::Store;
use lz_core::device::Platform;
use lz_core::error::Error;
use lz_core::kernel::KernelEntry;
use lz_core::operation::OperationInfo;
use lz_core::plan::{TransformKind, Transforms};
use lz_core::reason::{Reason, ReasonCode};

/// Whether a backend is available.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendState {
    /// Available.
    Available,
    /// Disabled; the reason says why and how to fix it.
    Disabled(Reason),
}

/// A backend.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// Its version, from its kernels.
    pub version: String,
    /// Whether it is available.
    pub state: BackendState,
}

/// A target of an alias, with the params that the alias fixes.
#[derive(Debug, Clone)]
pub struct AliasTarget {
    /// The operation.
    pub operation: &'static OperationInfo,
    /// Stores and values of the fixed params.
    pub fixes: Vec<(Store, u64)>,
}

/// Registered operations, kernels and backends.
#[derive(Debug, Default)]
pub struct Registry {
    operations: BTreeMap<&'static str, &'static OperationInfo>,
    kernels: Vec<Arc<CompiledKernel>>,
    /// Kernels by id; an id may be used once per operation.
    ids: HashMap<String, Vec<u32>>,
    /// Kernels by operation slot.
    by_slot: Vec<Vec<u32>>,
    backends: BTreeMap<String, Backend>,
    aliases: OnceLock<HashMap<String, Vec<AliasTarget>>>,
}

impl Registry {
    /// Operations, by name.
    pub fn operations(&self) -> impl Iterator<Item = &'static OperationInfo> {
        self.operations.values().copied()
    }

    /// The operation with this name.
    pub fn operation(&self, name: &str) -> Option<&'static OperationInfo> {
        self.operations.get(name).copied()
    }

    /// The operation with this name, or the error that suggests a similar one.
    pub fn find_operation(&self, name: &str) -> Result<&'static OperationInfo, Error> {
        self.operation(name).ok_or_else(|| self.unknown_operation(name))
    }

    /// The error for a name that no operation or alias has.
    #[cold]
    pub fn unknown_operation(&self, name: &str) -> Error {
        let names = self.operations().flat_map(|info| {
            let aliases = info.schema().aliases.iter().map(|alias| alias.name.as_str());
            std::iter::once(info.name.as_ref()).chain(aliases)
        });
        Error::unknown_operation(name, names)
    }

    /// The targets of an alias. The first call reads all schemas.
    pub fn alias(&self, name: &str) -> &[AliasTarget] {
        self.aliases.get_or_init(|| self.read_aliases()).get(name).map_or(&[], Vec::as_slice)
    }

    /// All kernels, in the order of registration.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelEntry> {
        self.kernels.iter().map(|kernel| &kernel.entry)
    }

    /// The kernel with this id; the first registered one if several operations use the id.
    pub fn kernel(&self, id: &str) -> Option<&KernelEntry> {
        self.kernels_named(id).next()
    }

    /// The kernels with this id, at most one per operation.
    pub fn kernels_named(&self, id: &str) -> impl Iterator<Item = &KernelEntry> {
        let indices = self.ids.get(id).map_or(&[][..], Vec::as_slice).iter();
        indices.filter_map(|index| self.compiled(*index)).map(|kernel| &kernel.entry)
    }

    /// The kernels of one operation, in the order of registration.
    pub fn kernels_of(&self, operation: &OperationInfo) -> impl Iterator<Item = &KernelEntry> {
        self.compiled_of(operation).iter().map(|index| &self.kernels[*index as usize].entry)
    }

    /// Backends, by name.
    pub fn backends(&self) -> impl Iterator<Item = (&str, &Backend)> {
        self.backends.iter().map(|(name, backend)| (name.as_str(), backend))
    }

    /// Operations whose tensors can be on this platform but that no available kernel of it supports. Operations without device
    /// tensors belong to the host.
    pub fn operations_without_kernel(&self, platform: Platform) -> Vec<&'static str> {
        let reaches = |operation: &OperationInfo| {
            let on_device = |input: &Input| input.kind == Kind::Tensor && input.device != DeviceRule::Host;
            platform == Platform::Cpu || operation.schema().inputs.iter().any(on_device)
        };
        let usable = |entry: &KernelEntry| {
            let backend = self.backend(&entry.spec.backend);
            entry.spec.platform == platform
                && backend.is_some_and(|backend| backend.state == BackendState::Available)
        };
        let unserved = self
            .operations()
            .filter(|operation| reaches(operation) && !self.kernels_of(operation).any(usable));
        unserved.map(|operation| operation.name.as_ref()).collect()
    }

    /// The backend with this name.
    pub fn backend(&self, name: &str) -> Option<&Backend> {
        self.backends.get(name)
    }

    pub(crate) fn compiled_of(&self, operation: &OperationInfo) -> &[u32] {
        self.by_slot.get(operation.slot() as usize).map_or(&[], Vec::as_slice)
    }

    /// A kernel by index. Indices past those of the kernels are their forms that copy strided tensors, see
    /// [`Registry::adapted`].
    pub(crate) fn compiled(&self, index: u32) -> Option<&CompiledKernel> {
        match self.kernels.get(index as usize) {
            Some(kernel) => Some(kernel),
            None => self.copying(index).map(Arc::as_ref),
        }
    }

    #[cold]
    fn copying(&self, index: u32) -> Option<&Arc<CompiledKernel>> {
        let index = (index as usize).checked_sub(self.kernels.len())?;
        self.kernels.get(index)?.copying()
    }

    /// The index of the form of a kernel that runs calls with these conversions: the kernel itself, or its form that copies
    /// strided tensors. A decision for the latter is cached like any other, and costs the other calls nothing.
    pub(crate) fn adapted(&self, index: u32, transforms: Transforms) -> u32 {
        let is_copying = || self.kernels.get(index as usize).is_some_and(|kernel| kernel.copying().is_some());
        if transforms.contains(TransformKind::Contiguous) && is_copying() {
            return index + self.kernels.len() as u32;
        }
        index
    }

    /// The index of a kernel whose form has this index.
    pub(crate) fn base(&self, index: u32) -> u32 {
        index.checked_sub(self.kernels.len() as u32).unwrap_or(index)
    }

    /// All kernels, as shared references.
    pub(crate) fn shared_kernels(&self) -> impl Iterator<Item = &Arc<CompiledKernel>> {
        self.kernels.iter()
    }

    /// Like [`Registry::compiled`], as a shared reference.
    pub(crate) fn shared(&self, index: u32) -> Option<Arc<CompiledKernel>> {
        self.kernels.get(index as usize).or_else(|| self.copying(index)).cloned()
    }

    /// The index of the kernel with this id and operation.
    pub(crate) fn index_of(&self, operation: &OperationInfo, id: &str) -> Option<u32> {
        let mut indices = self.ids.get(id)?.iter().copied();
        indices.find(|index| self.compiled(*index).is_some_and(|kernel| std::ptr::eq(kernel.info, operation)))
    }

    /// One more than the highest slot with kernels.
    pub(crate) fn slots(&self) -> usize {
        self.by_slot.len()
    }

    fn read_aliases(&self) -> HashMap<String, Vec<AliasTarget>> {
        let mut aliases: HashMap<String, Vec<AliasTarget>> = HashMap::new();
        for &operation in self.operations.values() {
            let schema = operation.schema();
            for alias in &schema.aliases {
                let fixes = alias.fixes.iter().filter_map(|(param, constant)| {
                    let field = operation.field(&schema.params.get(*param)?.name)?;
                    let bits = match constant {
                        Constant::Int(value) => *value as u64,
                        Constant::Float(value) => value.to_bits(),
                        Constant::Bool(value) => u64::from(*value),
                        Constant::Enum(case) => u64::from(*case),
                    };
                    Some((field.store, bits))
                });
                let target = AliasTarget { operation, fixes: fixes.collect() };
                aliases.entry(alias.name.clone()).or_default().push(target);
            }
        }
        aliases
    }

    /// A copy without the lazily read aliases.
    fn copy(&self) -> Registry {
        Registry {
            operations: self.operations.clone(),
            kernels: self.kernels.clone(),
            ids: self.ids.clone(),
            by_slot: self.by_slot.clone(),
            backends: self.backends.clone(),
            aliases: OnceLock::new(),
        }
    }

    /// Adds operations. Adding the same operation again has no effect.
    pub(crate) fn with_operations(
        &self,
        operations: impl IntoIterator<Item = &'static OperationInfo>,
    ) -> Result<Registry, Error> {
        let mut next = self.copy();
        let mut problems = Vec::new();
        for operation in operations {
            next.add_operation(operation, &mut problems);
        }
        finish(next, "operations", problems)
    }

    fn add_operation(&mut self, operation: &'static OperationInfo, problems: &mut Vec<Reason>) {
        match self.operations.get(operation.name.as_ref()) {
            None => {
                self.operations.insert(operation.name.as_ref(), operation);
            }
            Some(known) if std::ptr::eq(*known, operation) => {}
            Some(known) => problems.push(
                Reason::new(ReasonCode::OperationVersionMismatch)
                    .message(format!("operation {} is defined twice", operation.name))
                    .required(known.digest.to_string())
                    .found(operation.digest.to_string()),
            ),
        }
    }

    /// Adds kernels: all of them or, if any spec is invalid, none.
    pub(crate) fn with_kernels(
        &self,
        entries: impl IntoIterator<Item = KernelEntry>,
    ) -> Result<Registry, Error> {
        let mut next = self.copy();
        let mut problems = Vec::new();
        let mut subject = Vec::new();
        for entry in entries {
            let before = problems.len();
            let id = entry.spec.id.clone();
            next.add_kernel(entry, &mut problems);
            if problems.len() > before {
                subject.push(id);
            }
        }
        finish(next, &subject.join(", "), problems)
    }

    fn add_kernel(&mut self, entry: KernelEntry, problems: &mut Vec<Reason>) {
        let spec = Arc::clone(&entry.spec);
        if let Some(operation) = entry.operation {
            self.add_operation(operation, problems);
        }
        let Some(info) = entry.operation.or_else(|| self.operation(&spec.operation)) else {
            let error = self.unknown_operation(&spec.operation);
            problems.push(
                Reason::new(ReasonCode::OperationUnknown)
                    .message(format!("{}: {error}; register operations before their kernels", spec.id)),
            );
            return;
        };
        if self.index_of(info, &spec.id).is_some() {
            let message = format!(
                "kernel {} is already registered for {}; ids must be unique within an operation",
                spec.id, info.name
            );
            problems.push(Reason::new(ReasonCode::KernelDuplicate).message(message));
            return;
        }
        let compiled = match compiled::compile(entry.of(info), info) {
            Ok(compiled) => compiled,
            Err(more) => return problems.extend(more),
        };
        let index = self.kernels.len() as u32;
        self.kernels.push(Arc::new(compiled));
        self.ids.entry(spec.id.clone()).or_default().push(index);
        let slot = info.slot() as usize;
        if self.by_slot.len() <= slot {
            self.by_slot.resize_with(slot + 1, Vec::new);
        }
        self.by_slot[slot].push(index);
        self.backends
            .entry(spec.backend.clone())
            .or_insert_with(|| Backend { version: spec.version.clone(), state: BackendState::Available });
    }

    /// Adds versions next to registered kernels, under ids with a version: all of them or, if any is invalid, none.
    pub(crate) fn with_versions(
        &self,
        entries: impl IntoIterator<Item = KernelEntry>,
    ) -> Result<Registry, Error> {
        let entries: Vec<KernelEntry> = entries.into_iter().collect();
        let problems: Vec<Reason> = entries.iter().filter_map(|entry| self.version_problem(entry)).collect();
        if !problems.is_empty() {
            return finish(self.copy(), "versions", problems);
        }
        self.with_kernels(entries.into_iter().map(KernelEntry::as_version))
    }

    fn version_problem(&self, entry: &KernelEntry) -> Option<Reason> {
        let spec = &entry.spec;
        let info = entry.operation.or_else(|| self.operation(&spec.operation));
        let stable = info.and_then(|info| self.compiled(self.index_of(info, &spec.id)?));
        match stable {
            None => Some(Reason::new(ReasonCode::KernelUnknown).message(format!(
                "{} of {} is not registered; register its first version without another version next to it",
                spec.id, spec.operation
            ))),
            Some(stable) if stable.spec().version == spec.version => {
                let message = format!("version {} of {} is already registered", spec.version, spec.id);
                Some(Reason::new(ReasonCode::KernelDuplicate).message(message))
            }
            Some(_) => None,
        }
    }

    /// Replaces kernels by others: all of them or, if any spec is invalid, none.
    pub(crate) fn with_replaced(
        &self,
        is_replaced: impl Fn(&KernelEntry) -> bool,
        entries: impl IntoIterator<Item = KernelEntry>,
    ) -> Result<Registry, Error> {
        let next = self.without(|kernel| is_replaced(&kernel.entry));
        // Backends keep their state; the version of one that is replaced is read from its new kernels.
        let mut next = next.with_kernels(entries)?;
        let versions: Vec<(String, String)> = next
            .kernels()
            .filter(|entry| entry.version_of.is_none())
            .map(|entry| (entry.spec.backend.clone(), entry.spec.version.clone()))
            .collect();
        for (name, version) in versions.into_iter().rev() {
            if let Some(backend) = next.backends.get_mut(&name) {
                backend.version = version;
            }
        }
        Ok(next)
    }

    /// Removes an operation and its kernels.
    pub(crate) fn without_operation(&self, name: &str) -> Result<Registry, Error> {
        let removed = self.find_operation(name)?;
        let mut next = self.without(|kernel| std::ptr::eq(kernel.info, removed));
        next.operations.remove(name);
        Ok(next)
    }

    /// Removes the kernels with this id, of one operation if it is given. Backends that have no kernel left are removed too.
    pub(crate) fn without_kernel(&self, id: &str, operation: Option<&str>) -> Result<Registry, Error> {
        if let Some(operation) = operation {
            self.find_operation(operation)?;
        }
        let is_removed = |kernel: &CompiledKernel| {
            kernel.spec().id == id && operation.is_none_or(|operation| kernel.spec().operation == operation)
        };
        let removed: Vec<&str> = self
            .kernels
            .iter()
            .filter(|kernel| is_removed(kernel))
            .map(|kernel| kernel.spec().backend.as_str())
            .collect();
        if removed.is_empty() {
            return Err(self.unknown_kernel(id, operation));
        }
        let mut next = self.without(is_removed);
        for backend in removed {
            if !next.kernels.iter().any(|kernel| kernel.spec().backend == backend) {
                next.backends.remove(backend);
            }
        }
        Ok(next)
    }

    #[cold]
    fn unknown_kernel(&self, id: &str, operation: Option<&str>) -> Error {
        let fits = |entry: &&KernelEntry| operation.is_none_or(|name| entry.spec.operation == name);
        let ids = self.kernels().filter(fits).map(|entry| entry.spec.id.as_str());
        let hint = lz_schema::diagnostics::nearest(id, ids).map(|near| format!("; did you mean `{near}`?"));
        let place = operation.map_or_else(String::new, |operation| format!(" of {operation}"));
        let message = format!("unknown kernel{place}{}", hint.unwrap_or_default());
        let reasons = vec![Reason::new(ReasonCode::KernelUnknown).message(format!("`{id}`: {message}"))];
        Error::Configuration { subject: format!("`{id}`"), message, reasons }
    }

    /// Removes a backend and its kernels.
    pub(crate) fn without_backend(&self, backend: &str) -> Registry {
        let mut next = self.without(|kernel| kernel.spec().backend == backend);
        next.backends.remove(backend);
        next
    }

    /// Removes kernels. Backends stay.
    fn without(&self, is_removed: impl Fn(&CompiledKernel) -> bool) -> Registry {
        let mut next = Registry { operations: self.operations.clone(), ..Registry::default() };
        let kept = self.kernels.iter().filter(|kernel| !is_removed(kernel));
        next.kernels = kept.cloned().collect();
        next.by_slot.resize_with(self.by_slot.len(), Vec::new);
        for (index, kernel) in next.kernels.iter().enumerate() {
            next.ids.entry(kernel.spec().id.clone()).or_default().push(index as u32);
            if let Some(slot) = next.by_slot.get_mut(kernel.info.slot() as usize) {
                slot.push(index as u32);
            }
        }
        next.backends = self.backends.clone();
        next
    }

    /// Sets the state of a backend. A backend without kernels is added too, so that it appears in explanations.
    pub(crate) fn with_backend_state(&self, backend: &str, state: BackendState) -> Registry {
        let mut next = self.copy();
        let entry = next
            .backends
            .entry(backend.to_owned())
            .or_insert_with(|| Backend { version: String::new(), state: BackendState::Available });
        entry.state = state;
        next
    }
}

impl AliasTarget {
    /// Whether a call has the params that the alias fixes.
    pub fn covers(&self, context: &lz_core::context::Context) -> bool {
        self.fixes.iter().all(|(store, bits)| context.raw(*store) == *bits)
    }
}

fn finish(next: Registry, subject: &str, reasons: Vec<Reason>) -> Result<Registry, Error> {
    if reasons.is_empty() {
        return Ok(next);
    }
    let lines: Vec<String> = reasons.iter().map(|reason| format!("\n  {}", reason.sentence())).collect();
    let message = format!("invalid; nothing was registered{}", lines.concat());
    Err(Error::Configuration { subject: subject.to_owned(), message, reasons })
}
