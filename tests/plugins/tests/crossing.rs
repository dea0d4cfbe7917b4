//! What crosses to a worker: the arguments and results of every operation, bit for bit, and tensors of the shared memory
//! without a copy.

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

/// An engine that runs an operation in a worker and nowhere else.
fn far(worker: &Worker, info: &'static OperationInfo, id: &str) -> Engine {
    let engine = lz_ops::reference_engine();
    let spec = KernelSpec::new(id, &info.name, "far", "1", Platform::Cpu);
    engine.register([worker.kernel(spec, info)]).unwrap();
    engine.lock(&info.name, id).unwrap();
    engine
}

/// Everything that a call can have changed.
fn results(call: &OwnedCall) -> Vec<String> {
    let written = call.args.iter().filter_map(|arg| match arg {
        OwnedArg::Written(tensor) => Some(format!("{:?}", tensor.bytes())),
        _ => None,
    });
    let outputs = call.outputs.iter().map(|output| match output {
        OwnedOut::Absent => "absent".to_owned(),
        OwnedOut::Tensor(tensor) => format!("{:?}", tensor.bytes()),
        OwnedOut::Dynamic(tensor) => {
            let tensor = tensor.as_ref().expect("it was made");
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
fn every_operation_crosses_and_comes_back_bit_for_bit() {
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
            let mut there = draw_valid(&prepared, &mut random, &drawing).unwrap().call;
            let mut here = there.clone();
            here.lend(|args, outputs| dynamic::call_into(&reference, info, args, outputs)).unwrap();
            there
                .lend(|args, outputs| dynamic::call_into(&engine, info, args, outputs))
                .unwrap_or_else(|error| panic!("{}, case {case}: {error}", info.name));
            assert_eq!(results(&there), results(&here), "{}, case {case}", info.name);
        }
    }
    assert_eq!(worker.starts(), 1);
    assert_eq!(worker.free_bytes(), free, "everything was given back");
}

#[test]
fn what_lies_in_shared_memory_is_not_copied() {
    let worker = worker();
    let engine = far(&worker, &NORM_RMS, "far.addresses");
    let x = worker.allocate(&[4, 64], DType::F32).unwrap();
    let _between = worker.allocate(&[1000], DType::F32).unwrap();
    let mut out = worker.allocate(&[4, 64], DType::F32).unwrap();
    let distance = (out.view().address() - x.view().address()) / size_of::<f32>();
    norm_rms_into(&engine, &NormRms::new(x.view()), out.view_mut()).unwrap();
    let told = out.view().as_slice::<f32>().unwrap()[0];
    assert_eq!(told, distance as f32, "the kernel worked on the very tensors that the caller holds");
    // From elsewhere it is a copy, and the result comes back by another.
    let elsewhere = lz_core::Tensor::zeros(&[4, 64], DType::F32).unwrap();
    norm_rms_into(&engine, &NormRms::new(elsewhere.view()), out.view_mut()).unwrap();
    assert_ne!(out.view().as_slice::<f32>().unwrap()[0], distance as f32);
}
