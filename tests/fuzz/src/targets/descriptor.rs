//! Capability descriptors: errors have locations, an accepted one has the same hash in every spelling, and the registry accepts its specs.

use std::any::Any;
use std::sync::OnceLock;

use lz_core::descriptor::{self, Catalog};
use lz_core::{Arg, Kernel, KernelEntry, KernelError, OutArg, Run};
use lz_engine::Engine;
use serde_json::Value;

use crate::diagnostics;

struct Nothing;

impl Kernel for Nothing {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], _: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        Err(KernelError::declined("it is never run"))
    }
}

fn catalog() -> &'static Catalog<'static> {
    static CATALOG: OnceLock<Catalog<'static>> = OnceLock::new();
    CATALOG.get_or_init(|| Catalog::new(lz_ops::OPERATIONS.iter().map(|info| info.schema())))
}

pub fn run(input: &[u8]) -> bool {
    let text = String::from_utf8_lossy(input);
    let read = match descriptor::read("capabilities.json", &text, catalog()) {
        Ok(read) => read,
        Err(error) => {
            diagnostics::check(&error.report);
            assert_eq!(error.reasons.len(), error.report.diagnostics.len());
            for reason in &error.reasons {
                assert!(reason.to_string().contains("capabilities.json:"), "{reason} has no location");
            }
            return false;
        }
    };
    let json: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("accepted, but: {error}"));
    let pretty = format!("{json:#}");
    let again = descriptor::read("pretty.json", &pretty, catalog());
    let again = again.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.hash, read.hash);
    assert_eq!(again.kernels, read.kernels);
    for spec in read.kernels {
        let info = lz_ops::OPERATIONS.into_iter().find(|info| info.name == spec.operation);
        let info = info.unwrap_or_else(|| panic!("{} is unknown", spec.operation));
        let (id, engine) = (spec.id.clone(), Engine::new());
        let registered = engine.register([KernelEntry::new(spec, Nothing).of(info)]);
        registered.unwrap_or_else(|error| panic!("{id} of {}: {error}", info.name));
    }
    true
}
