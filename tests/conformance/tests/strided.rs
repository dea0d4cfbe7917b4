//! Strided tensors that the engine copies: for every kernel, the same bits as the kernel computes for dense tensors.

use lz_conformance::assign::Prepared;
use lz_conformance::fill::Numbers;
use lz_conformance::generated::SUBJECTS;
use lz_conformance::suite::{Checked, focus_of, for_each_case};
use lz_conformance::valid::{Drawing, draw_valid};
use lz_core::args::{Arg, OutArg};
use lz_core::plan::TransformKind;
use lz_core::run::{Run, Scratch};
use lz_core::tensor::copy_elements;
use lz_core::{KernelEntry, KernelError, Tensor, TensorView};
use lz_engine::{Engine, dynamic};

/// Calls drawn for each kernel.
const CASES: u64 = 24;

fn dense(view: &TensorView<'_>) -> Tensor {
    let mut copy = Tensor::zeros(view.shape(), view.dtype()).unwrap();
    assert!(copy_elements(view, &mut copy.view_mut()));
    copy
}

/// The results of a kernel for dense copies of all tensors: outputs, then tensors that are changed in place.
fn on_dense_tensors(
    entry: &KernelEntry,
    args: &[Arg<'_>],
    outputs: &[OutArg<'_>],
) -> Result<Vec<Tensor>, KernelError> {
    let mut inputs: Vec<Option<Tensor>> = args.iter().map(|arg| Some(dense(&arg.tensor()?))).collect();
    let mut results: Vec<Option<Tensor>> = outputs
        .iter()
        .map(|output| match output {
            OutArg::Tensor(tensor) => Some(dense(tensor.view())),
            _ => None,
        })
        .collect();
    let mut dense_args = Vec::new();
    for (arg, copy) in args.iter().zip(&mut inputs) {
        dense_args.push(match (arg, copy) {
            (Arg::TensorMut(_), Some(copy)) => Arg::TensorMut(copy.view_mut()),
            (_, Some(copy)) => Arg::Tensor(copy.view()),
            (Arg::Value(value), None) => Arg::Value(*value),
            _ => Arg::Absent,
        });
    }
    let mut dense_outputs = Vec::new();
    for result in &mut results {
        dense_outputs.push(match result {
            Some(result) => OutArg::Tensor(result.view_mut()),
            None => OutArg::Absent,
        });
    }
    let mut scratch = Scratch::default();
    entry.kernel.run(&mut dense_args, &mut dense_outputs, &mut Run::unbounded(&mut scratch))?;
    drop((dense_args, dense_outputs));
    let changed = args.iter().zip(inputs).filter(|(arg, _)| matches!(arg, Arg::TensorMut(_)));
    Ok(results.into_iter().flatten().chain(changed.filter_map(|(_, copy)| copy)).collect())
}

#[test]
fn copied_calls_match_calls_of_dense_tensors() {
    let mut copied = 0;
    for subject in SUBJECTS {
        let (info, operation) = (subject.info(), subject.info().schema());
        let prepared = Prepared::new(operation).tame();
        let copies = |entry: &&KernelEntry| entry.spec.operation == info.name && entry.spec.copies_strided;
        for entry in lz_test_kernels::runnable().iter().filter(copies) {
            let engine = Engine::new();
            engine.register([entry.clone()]).unwrap_or_else(|error| panic!("{error}"));
            let outcome = for_each_case(&operation.name, "strided", 0..CASES, |case, random, size| {
                let focus = focus_of(&prepared, case);
                let drawing = Drawing { size, focus: &focus, numbers: Numbers::Normal, devices: false };
                let mut drawn = draw_valid(&prepared, random, &drawing)?;
                let mut problem = None;
                drawn.call.with_args(|args, outputs| {
                    let Some(Checked::Right { context, outputs: Some(Ok(())) }) =
                        subject.check(args, Some(outputs))
                    else {
                        return;
                    };
                    let is_copied = engine
                        .which(info, &context)
                        .is_ok_and(|plan| plan.transforms.contains(TransformKind::Contiguous));
                    if !is_copied {
                        return;
                    }
                    // A kernel may refuse values.
                    let Ok(expected) = on_dense_tensors(entry, args, outputs) else { return };
                    if let Err(error) = dynamic::call_into(&engine, info, args, outputs) {
                        problem = Some(error.to_string());
                        return;
                    }
                    copied += 1;
                    let found = outputs.iter().filter_map(|output| match output {
                        OutArg::Tensor(tensor) => Some(dense(tensor.view())),
                        _ => None,
                    });
                    let changed = args.iter().filter_map(|arg| match arg {
                        Arg::TensorMut(tensor) => Some(dense(tensor.view())),
                        _ => None,
                    });
                    let same = found
                        .chain(changed)
                        .zip(&expected)
                        .all(|(found, expected)| found.bytes() == expected.bytes());
                    if !same {
                        problem = Some("the results differ".to_owned());
                    }
                });
                problem.map_or(Ok(()), |problem| Err(format!("{problem}\n{:?}", drawn.call)))
            });
            outcome.unwrap_or_else(|problem| panic!("{}: {problem}", entry.spec.id));
        }
    }
    assert!(copied > 1000, "only {copied} calls were copied");
}
