//! Kernels of capability descriptors in an engine. Whether descriptors are right is tested with `lz-core`.

use lz_core::descriptor::{self, Catalog};
use lz_core::{Arg, Kernel, KernelEntry, KernelError, OutArg, Run};
use lz_engine::Engine;
use lz_schema::diagnostics::Code;
use lz_test_support::{fixtures, operation, operations};

const FAIL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lz-core/tests/descriptors/fail");
const TABLES_FAIL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tables/fail");
const PASS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lz-core/tests/descriptors/pass");

struct Nothing;

impl Kernel for Nothing {
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }

    fn run(&self, _: &mut [Arg<'_>], _: &mut [OutArg<'_>], _: &mut Run<'_>) -> Result<(), KernelError> {
        Ok(())
    }
}

#[test]
fn engine_accepts_every_descriptor_spec() {
    let catalog = Catalog::new(operations().iter().map(|info| info.schema()));
    let all = fixtures(PASS);
    for name in ["appendix_d.json", "everything.json", "norm_rms.json"] {
        let (_, _, text) = all.iter().find(|(_, found, _)| found == name).expect(name);
        let right = descriptor::read(name, text, &catalog).unwrap_or_else(|error| panic!("{error}"));
        for spec in right.kernels {
            let (id, of) = (spec.id.clone(), operation(&spec.operation));
            let engine = Engine::new();
            if let Err(error) = engine.register([KernelEntry::new(spec, Nothing).of(of)]) {
                panic!("{name}: {id} of {}: {error}", of.name);
            }
        }
    }
}

#[test]
fn each_contract_diagnostic_has_a_fixture() {
    let names: Vec<String> =
        [FAIL, TABLES_FAIL].into_iter().flat_map(fixtures).map(|(_, name, _)| name).collect();
    for code in Code::ALL.iter().filter(|code| **code >= Code::JsonSyntax) {
        assert!(names.iter().any(|name| name.starts_with(code.id())), "{code} has no fixture");
    }
}
