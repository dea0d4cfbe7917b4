//! The ONNX node tests, one named test per case: every file is read, every case that an operation supports
//! runs on every kernel of that operation, and `skips.yaml` lists exactly the rest.

use libtest_mimic::{Arguments, Failed, Trial};
use lz_core::Error;
use lz_onnx_conformance::compare::compare;
use lz_onnx_conformance::kernels::{REFERENCE_BACKEND, engines};
use lz_onnx_conformance::map::{self, MapError, MappedCall};
use lz_onnx_conformance::skips::{Skip, Skips, form_name, matches, read_skips};
use lz_onnx_conformance::{Case, DataSet, LoadedCase, ToF64, data_directory, list_cases, load_case};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

/// Number of cases in `onnx` 1.22.0; fewer would mean incomplete data.
const CASE_COUNT: usize = 1765;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let trials = match trials(&root) {
        Ok(trials) => trials,
        Err(message) => vec![Trial::test("the test data is available", move || Err(Failed::from(message)))],
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trials(root: &Path) -> Result<Vec<Trial>, String> {
    let skips = Arc::new(read_skips(include_str!("../skips.yaml")).map_err(|error| error.to_string())?);
    let directory = data_directory(root)?;
    let folders = list_cases(&directory).map_err(|error| error.to_string())?;
    let count = folders.len();
    let mut trials = vec![Trial::test("the suite is complete", move || {
        if count == CASE_COUNT { Ok(()) } else { Err(format!("{count} cases, not {CASE_COUNT}").into()) }
    })];
    let mut loaded = Vec::new();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match load_case(&folder) {
            Ok(case) => loaded.push((name, Arc::new(case))),
            Err(error) => trials.push(Trial::test(name, move || Err(error.into()))),
        }
    }
    let (list, cases) = (Arc::clone(&skips), loaded.clone());
    trials.push(Trial::test("every entry of the skip list is needed", move || needed(&list, &cases)));
    trials.extend(loaded.into_iter().map(|(name, case)| {
        let skips = Arc::clone(&skips);
        let kind = if is_skipped(&skips, &case) { "skipped" } else { "run" };
        Trial::test(name, move || check(&skips, &case)).with_kind(kind)
    }));
    Ok(trials)
}

fn operator(case: &Case) -> String {
    map::operator_name(&case.node.domain, &case.node.op_type)
}

fn is_skipped(skips: &Skips, case: &LoadedCase) -> bool {
    match case {
        LoadedCase::Skipped { .. } => true,
        LoadedCase::Loaded(case) => {
            !map::is_mapped(&case.node) || skips.case(&operator(case), &case.name).is_some()
        }
    }
}

/// A case is read completely, and then it runs or the skip list covers it.
fn check(skips: &Skips, case: &LoadedCase) -> Result<(), Failed> {
    let case = match case {
        LoadedCase::Loaded(case) => case,
        LoadedCase::Skipped { reason, .. } => {
            return match skips.form(reason) {
                Some(_) => Ok(()),
                None => {
                    Err(format!("{reason}, and the skip list has no form `{}`", form_name(reason)).into())
                }
            };
        }
    };
    case.data_sets.iter().try_for_each(|data_set| check_read(case, data_set))?;
    let operator = operator(case);
    if !map::is_mapped(&case.node) {
        return match skips.operator(&operator) {
            Some(_) => Ok(()),
            None => Err(format!("`{operator}` is neither mapped nor in the skip list").into()),
        };
    }
    for data_set in &case.data_sets {
        match (map::map_case(case, data_set), skips.case(&operator, &case.name)) {
            (Ok(calls), None) => run(skips, case, data_set, &calls)?,
            (Err(MapError::Unsupported { .. }), Some(_)) => {}
            (Err(MapError::Unsupported { reason }), None) => {
                return Err(
                    format!("not supported by any operation, and not in the skip list: {reason}").into()
                );
            }
            (Ok(_), Some(Skip { line, .. })) => {
                return Err(format!("line {line} of the skip list covers it, but it is supported").into());
            }
            (Err(error), _) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Every name of the node has a tensor, with the element count of its shape.
fn check_read(case: &Case, data_set: &DataSet) -> Result<(), Failed> {
    let inputs = case.node.inputs.iter().zip(&data_set.inputs);
    let outputs = case.node.outputs.iter().zip(&data_set.outputs);
    for (name, tensor) in inputs.chain(outputs) {
        match tensor {
            None if name.is_empty() => {}
            Some(tensor) if &tensor.name == name => {
                let values = tensor.to_f64();
                if values.is_some_and(|values| values.len() != tensor.element_count()) {
                    return Err(format!("`{name}` has an element count that differs from its shape").into());
                }
            }
            _ => return Err(format!("`{name}` has no tensor of its name").into()),
        }
    }
    Ok(())
}

/// Every kernel of every mapped call gives the expected results, and every output is compared.
fn run(skips: &Skips, case: &Case, data_set: &DataSet, calls: &[MappedCall]) -> Result<(), Failed> {
    let mut compared = BTreeSet::new();
    for call in calls {
        let engines = engines(call.operation)?;
        if !engines.iter().any(|(kernel, _)| kernel.spec.backend == REFERENCE_BACKEND) {
            return Err(format!("`{}` has no reference", call.operation).into());
        }
        for (kernel, engine) in engines {
            let id = &kernel.spec.id;
            let produced = match call.run(&engine) {
                Ok(produced) => produced,
                Err(MapError::Call(Error::NoKernel { .. })) if kernel.spec.backend != REFERENCE_BACKEND => {
                    continue;
                }
                Err(error) => return Err(format!("{id}: {error}").into()),
            };
            for found in produced {
                let Some(expected) = data_set.outputs.get(found.output).and_then(Option::as_ref) else {
                    return Err(format!("{id}: output {} is not an output of the node", found.output).into());
                };
                compare(expected, &found.tensor)
                    .map_err(|difference| format!("{id}: `{}`: {difference}", expected.name))?;
                compared.insert(found.output);
            }
        }
    }
    for (output, expected) in data_set.outputs.iter().enumerate() {
        let Some(expected) = expected else { continue };
        match (compared.contains(&output), skips.output(&operator(case), &case.name, output)) {
            (true, None) | (false, Some(_)) => {}
            (true, Some(Skip { line, .. })) => {
                return Err(format!(
                    "line {line} of the skip list covers `{}`, which is compared",
                    expected.name
                )
                .into());
            }
            (false, None) => return Err(format!("`{}` was not compared", expected.name).into()),
        }
    }
    Ok(())
}

/// Every entry of the list covers something, and nothing that is mapped.
fn needed(skips: &Skips, cases: &[(String, Arc<LoadedCase>)]) -> Result<(), Failed> {
    let mut forms = BTreeSet::new();
    let mut named = BTreeSet::new();
    for (name, case) in cases {
        match &**case {
            LoadedCase::Skipped { reason, .. } => drop(forms.insert(form_name(reason).to_owned())),
            LoadedCase::Loaded(case) => drop(named.insert((operator(case), name.clone()))),
        }
    }
    let operators: BTreeSet<String> = named.iter().map(|(operator, _)| operator.clone()).collect();
    let mapped: BTreeSet<String> = map::mapped_operators().collect();
    let mut problems = Vec::new();
    for skip in skips.forms.iter() {
        let unknown = skip.covers.iter().filter(|form| !forms.contains(*form));
        problems.extend(unknown.map(|form| format!("line {}: no case has the form `{form}`", skip.line)));
    }
    for skip in skips.operators.iter() {
        for listed in &skip.covers {
            if !operators.contains(listed) {
                problems.push(format!("line {}: no case has the operator `{listed}`", skip.line));
            }
            if mapped.contains(listed) {
                problems.push(format!("line {}: `{listed}` is mapped", skip.line));
            }
        }
    }
    for skip in skips.cases.iter().chain(&skips.outputs) {
        for pattern in &skip.covers {
            let mut names = named.iter().filter(|(operator, _)| *operator == skip.operator);
            if !names.any(|(_, name)| matches(pattern, name)) {
                problems
                    .push(format!("line {}: no case of `{}` is named `{pattern}`", skip.line, skip.operator));
            }
        }
    }
    problems.extend(
        mapped.difference(&operators).map(|operator| format!("`{operator}` is mapped, but has no case")),
    );
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n").into()) }
}
