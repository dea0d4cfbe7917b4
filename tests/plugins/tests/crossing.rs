//! Arguments and results of every operation are passed to a worker and back bit for bit; tensors in shared memory are not copied.

use lz_conformance::assign::Prepared;
use lz_conformance::call::{OwnedArg, OwnedCall, OwnedOut};
use lz_conformance::fill::Numbers;
use lz_conformance::random::{Random, case_seed};
use lz_conformance::valid::{Drawing, draw_valid};
use lz_core::device::Platform;
use lz_core::{DType, KernelSpec, OperationInfo};
use lz_engine::{Engine, dynamic};
use lz_ops::{NORM_RMS, NormRms, norm_rms_into};
use lz_worker::{Worker, WorkerOptions};

fn worker() -> Worker {
    let mut options = WorkerOptions::new(env!("CARGO_BIN_EXE_lz-test-worker"));
    options.arena_bytes = 64 << 20;
    Worker::start(options).unwrap()
}

/// An engine that runs an operation only in a worker.
fn far(worker: &Worker, info: &'static OperationInfo, id: &str) -> Engine {
    let engine = lz_ops::reference_engine();
    let spec = KernelSpec::new(id, &info.name, "far", "1", Platform::Cpu);
    engine.register([worker.kernel(spec, info)]).unwrap();
    engine.lock(&info.name, id).unwrap();
    engine
}

/// Everything that a call may have written.
fn results(call: &OwnedCall) -> Vec<String> {
    let written = call.args.iter().filter_map(|arg| match arg {
        OwnedArg::Written(tensor) => Some(format!("{:?}", tensor.bytes())),
        _ => None,
    });
    let outputs = call.outputs.iter().map(|output| match output {
        OwnedOut::Absent => "absent".to_owned(),
        OwnedOut::Tensor(tensor) => format!("{:?}", tensor.bytes()),
        OwnedOut::Dynamic(tensor) => {
            let tensor = tensor.as_ref().expect("the kernel set the output");
            let view = tensor.view();
            let bits = view.bits();
            let values = lz_core::tensor::Indices::new(view.shape()).map(|index| bits.int_at(&index));
            format!("{:?} {:?}", view.layout(), values.collect::<Vec<_>>())
        }
        OwnedOut::Text(texts) => format!("{texts:?}"),
    });
    written.chain(outputs).collect()
}

#[test]
fn every_operation_gives_bit_identical_results_in_a_worker() {
    let worker = worker();
    let free = worker.free_bytes();
    let reference = lz_ops::reference_engine();
    for info in lz_ops::OPERATIONS {
        let engine = far(&worker, info, &format!("far.{}", info.name));
        for case in 0..4 {
            let operation = info.schema();
            let prepared = Prepared::new(operation).tame();
            let mut random = Random::new(case_seed(&operation.name, "worker", case));
            let drawing = Drawing { size: 40, focus: &[], numbers: Numbers::Normal, devices: false };
            let mut remote = draw_valid(&prepared, &mut random, &drawing).unwrap().call;
            let mut local = remote.clone();
            local.with_args(|args, outputs| dynamic::call_into(&reference, info, args, outputs)).unwrap();
            remote
                .with_args(|args, outputs| dynamic::call_into(&engine, info, args, outputs))
                .unwrap_or_else(|error| panic!("{}, case {case}: {error}", info.name));
            assert_eq!(results(&remote), results(&local), "{}, case {case}", info.name);
        }
    }
    assert_eq!(worker.starts(), 1);
    assert_eq!(worker.free_bytes(), free, "all blocks were released");
}

#[test]
fn tensors_in_shared_memory_are_not_copied() {
    let worker = worker();
    let engine = far(&worker, &NORM_RMS, "far.addresses");
    let x = worker.allocate(&[4, 64], DType::F32).unwrap();
    let _between = worker.allocate(&[1000], DType::F32).unwrap();
    let mut out = worker.allocate(&[4, 64], DType::F32).unwrap();
    let distance = (out.view().address() - x.view().address()) / size_of::<f32>();
    norm_rms_into(&engine, &NormRms::new(x.view()), out.view_mut()).unwrap();
    let reported = out.view().as_slice::<f32>().unwrap()[0];
    assert_eq!(reported, distance as f32, "the kernel used the caller's tensors");
    // A tensor outside of the arena is copied.
    let elsewhere = lz_core::Tensor::zeros(&[4, 64], DType::F32).unwrap();
    norm_rms_into(&engine, &NormRms::new(elsewhere.view()), out.view_mut()).unwrap();
    assert_ne!(out.view().as_slice::<f32>().unwrap()[0], distance as f32);
}
