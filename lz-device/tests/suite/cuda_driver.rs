//! CUDA detection with a fake driver library that is really loaded and called, without a GPU.

use std::path::{Path, PathBuf};

use lz_core::device::{
    Environment, Generation, GenerationTable, InstructionSet, MemoryPressure, Platform, PowerState,
    Temperature,
};
use lz_device::{AbsenceReason, CudaDriver, FreeMemory, Nvml, discover, discover_with};

/// Cargo builds examples before integration tests, and puts them next to the directory of the test binaries.
fn fake_library() -> PathBuf {
    let binary = std::env::current_exe().unwrap();
    let profile = binary.parent().and_then(Path::parent).unwrap();
    let name = format!("{}fake_cuda{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    profile.join("examples").join(name)
}

fn configure(library: &Path, init_result: i32, devices: i32) {
    // SAFETY: this is our own library, and the function has this signature.
    unsafe {
        let library = libloading::Library::new(library).unwrap();
        let configure = library.get::<unsafe extern "C" fn(i32, i32)>("fake_cuda_configure").unwrap();
        configure(init_result, devices);
        // The settings are in the library's memory: it must stay mapped.
        std::mem::forget(library);
    }
}

/// One test, because the settings of the library are process-wide.
#[test]
fn driver_is_queried_and_failures_are_reasons() {
    let library = fake_library();
    let table = GenerationTable::default();
    let find = || discover_with(&table, &library, &library, Path::new("/nonexistent"));

    configure(&library, 0, 2);
    let found = find();
    let gpu = found.of(Platform::Cuda).next().unwrap();
    let spec = gpu.cuda().unwrap();
    assert_eq!(found.of(Platform::Cuda).count(), 1, "the device that does not answer is left out");
    assert_eq!(
        found.absence(Platform::Cuda),
        Some(&AbsenceReason::CallFailed { function: "cuDeviceTotalMem_v2", code: 999 })
    );
    assert_eq!(gpu.name, "Fake H100");
    assert_eq!(gpu.uuid, "GPU-abababab-abab-abab-abab-abababababab");
    assert_eq!(gpu.hardware_signature(), "cuda_sm90_cu128");
    assert_eq!(spec.driver_version, "570.00.01");
    assert_eq!(spec.generation, Some(Generation::named("hopper")));
    assert!(spec.instruction_sets.contains(&InstructionSet::Wgmma));
    assert_eq!((spec.sm_count, spec.memory_bytes, spec.l2_bytes), (132, 80 << 30, 50 << 20));
    assert_eq!(spec.max_grid, [2_147_483_647, 65_535, 65_535]);
    assert_eq!((spec.max_block, spec.max_threads_per_block), ([1024, 1024, 64], 1024));
    assert_eq!(spec.max_shared_memory_per_block, 232_448);
    assert!(spec.supports.cooperative_launch && spec.supports.f8);
    assert!(!spec.supports.memory_pools, "an attribute that the driver does not know is not assumed");

    let nvml = Nvml::open(&library).unwrap();
    let expected = Environment {
        temperature: Temperature::Hot,
        memory_pressure: MemoryPressure::Medium,
        power: PowerState::Unknown,
    };
    assert_eq!(nvml.environment(&gpu.uuid), expected, "a missing function leaves one bucket unknown");
    assert_eq!(nvml.free_memory_bytes(&gpu.uuid), Some(30));
    assert_eq!(nvml.environment("GPU-of-another-machine"), Environment::default());

    // The driver is queried first, because it knows the thread's context; NVML is queried without a context.
    let nowhere = Path::new("/nonexistent");
    let memory = FreeMemory::at(nowhere, &library, &library);
    assert_eq!(memory.bytes(gpu), Some(7 << 30));
    let mut other = gpu.clone();
    other.uuid = "GPU-of-another-machine".to_owned();
    assert_eq!(memory.bytes(&other), None);
    assert_eq!(FreeMemory::at(nowhere, nowhere, nowhere).bytes(gpu), None);
    configure(&library, 0, 0);
    assert_eq!(memory.bytes(gpu), Some(30), "without a context");
    assert_eq!(nvml.environment("with\0zero"), Environment::default());

    configure(&library, 0, 0);
    assert_eq!(find().absence(Platform::Cuda), Some(&AbsenceReason::NoDevices));
    configure(&library, 100, 0);
    assert_eq!(find().absence(Platform::Cuda), Some(&AbsenceReason::NoDevices));
    configure(&library, 803, 1);
    assert_eq!(
        find().absence(Platform::Cuda),
        Some(&AbsenceReason::CallFailed { function: "cuInit", code: 803 })
    );
    assert!(Nvml::open(&library).is_err());
}

#[test]
fn library_without_the_driver_functions_is_rejected() {
    // The C library exists on every Linux machine and has no cuInit.
    let reason = CudaDriver::open(Path::new("libc.so.6")).unwrap_err();
    let missing = AbsenceReason::SymbolMissing { library: "libc.so.6".into(), symbol: "cuInit" };
    assert!(reason == missing || cfg!(not(target_os = "linux")), "{reason}");
}

#[test]
fn this_machine_is_detected_or_has_a_reason() {
    let found = discover();
    assert_eq!(found.devices[0].platform(), Platform::Cpu);
    match found.of(Platform::Cuda).next() {
        Some(gpu) => {
            assert!(gpu.sm().unwrap() >= 50 && gpu.memory_bytes().unwrap() > 0, "{gpu:?}");
            println!("{} {} {}", gpu.name, gpu.hardware_signature(), lz_device::read_environment(gpu));
        }
        None => assert!(found.absence(Platform::Cuda).is_some()),
    }
}
