//! Names of kernels and backends in a policy that match nothing that is registered.

use lz_core::built_in::BUILT_IN_BACKENDS;
use lz_schema::diagnostics::nearest;
use lz_schema::policy::List;

use super::layer::Layer;
use super::{Action, Pattern, Provenance};
use crate::registry::Registry;

/// A name that matches no registered kernel or backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownName {
    /// The name or pattern.
    pub name: String,
    /// Where it is.
    pub source: Provenance,
    /// Whether its backend is registered, so that the kernel is not one of a backend that is loaded later.
    pub backend_registered: bool,
    /// A registered kernel or backend with a similar name.
    pub near: Option<String>,
}

impl std::fmt::Display for UnknownName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` ({}) matches no registered kernel or backend", self.name, self.source)?;
        self.near.as_ref().map_or(Ok(()), |near| write!(f, "; did you mean `{near}`?"))
    }
}

/// The names of a policy that match nothing. Names of a built-in backend that is not registered are left out: it may not be
/// installed, or not be loaded yet.
pub(crate) fn unknown_names(layer: &Layer, registry: &Registry) -> Vec<UnknownName> {
    let mut names: Vec<(&str, &Provenance)> = Vec::new();
    names.extend(layer.locks.iter().map(|lock| (lock.kernel.as_str(), &lock.source)));
    for (list, ..) in List::ALL {
        names.extend(layer.entries(list).iter().map(|entry| (entry.kernels.as_str(), &entry.source)));
    }
    for rule in &layer.rules {
        names.extend(rule.actions.iter().filter_map(|action| Some((named(action)?, &rule.source))));
    }
    let unknown = |(name, source): &(&str, &Provenance)| {
        (!is_known(name, registry)).then(|| UnknownName {
            name: (*name).to_owned(),
            source: (*source).clone(),
            backend_registered: registry.backend(backend_of(name)).is_some(),
            near: near(name, registry),
        })
    };
    names.iter().filter_map(unknown).collect()
}

fn named(action: &Action) -> Option<&str> {
    match action {
        Action::Allow(pattern)
        | Action::Deny(pattern)
        | Action::Prefer(pattern)
        | Action::Avoid(pattern)
        | Action::Boost(pattern, _) => Some(pattern.as_str()),
        Action::Lock(kernel) | Action::Override(kernel) => Some(kernel),
        Action::Filter(_) => None,
    }
}

fn is_known(name: &str, registry: &Registry) -> bool {
    let pattern = Pattern::new(name);
    let backend = backend_of(name);
    let is_registered = registry.backend(backend).is_some();
    registry.kernels().any(|kernel| pattern.matches_kernel(kernel))
        || !is_registered && BUILT_IN_BACKENDS.contains(&backend)
}

fn backend_of(name: &str) -> &str {
    name.split(['.', '*']).next().unwrap_or(name)
}

fn near(name: &str, registry: &Registry) -> Option<String> {
    let kernels = registry.kernels().map(|kernel| kernel.spec.id.as_str());
    let backends = registry.kernels().map(|kernel| kernel.spec.backend.as_str());
    nearest(name, kernels.chain(backends).chain(BUILT_IN_BACKENDS)).map(str::to_owned)
}
