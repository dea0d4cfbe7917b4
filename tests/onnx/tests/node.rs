//! The ONNX node tests, one named test a case: every file of the suite must be read.

use libtest_mimic::{Arguments, Failed, Trial};
use lz_onnx_conformance::{LoadedCase, data_directory, list_cases, load_case};
use std::path::Path;
use std::process::ExitCode;

/// How many cases `onnx` 1.22.0 ships: fewer would mean that the data is cut short.
const CASE_COUNT: usize = 1765;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trials = match trials(&root) {
        Ok(trials) => trials,
        Err(message) => vec![Trial::test("the data is there", move || Err(Failed::from(message)))],
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(root: &Path) -> Result<Vec<Trial>, String> {
    let directory = data_directory(root)?;
    let cases = list_cases(&directory).map_err(|error| error.to_string())?;
    let count = cases.len();
    let mut trials = vec![Trial::test("the suite is whole", move || {
        if count == CASE_COUNT { Ok(()) } else { Err(format!("{count} cases, not {CASE_COUNT}").into()) }
    })];
    trials.extend(cases.into_iter().map(|case| {
        let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Trial::test(name, move || check(&case))
    }));
    Ok(trials)
}

/// A case is read whole: each name that the node uses has its tensor, in the count that the shape asks for.
fn check(directory: &Path) -> Result<(), Failed> {
    let LoadedCase::Loaded(case) = load_case(directory)? else {
        return Ok(());
    };
    for data_set in &case.data_sets {
        let inputs = case.node.inputs.iter().zip(&data_set.inputs);
        let outputs = case.node.outputs.iter().zip(&data_set.outputs);
        for (name, tensor) in inputs.chain(outputs) {
            match tensor {
                None if name.is_empty() => {}
                Some(tensor) if &tensor.name == name => {
                    let values = tensor.to_f64();
                    if values.is_some_and(|values| values.len() != tensor.element_count()) {
                        return Err(format!("`{name}` does not have the elements of its shape").into());
                    }
                }
                _ => return Err(format!("`{name}` has no tensor of its name").into()),
            }
        }
    }
    Ok(())
}
