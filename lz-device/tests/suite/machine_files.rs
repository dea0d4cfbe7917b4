//! CPU and AMD GPU detection on machines that are files in a directory.

use std::fs;
use std::path::Path;

use lz_core::device::{Isa, Platform, Vendor};
use lz_device::{AbsenceReason, FreeMemory, detect_cpu_at, detect_rocm_at};
use lz_test_support::Folder;

/// A machine as files in a folder.
struct Machine(Folder);

impl Machine {
    fn new() -> Machine {
        Machine(Folder::new())
    }

    fn file(&self, path: &str, text: &str) -> &Self {
        let path = self.0.file(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Two threads on each core, `threads` of them usable.
    fn processors(&self, threads: u32) -> &Self {
        self.file(
            "proc/cpuinfo",
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx avx2 fma f16c avx512f amx_tile\n",
        );
        self.file("proc/self/status", &format!("Name:\tx\nCpus_allowed_list:\t0-{}\n", threads - 1));
        for thread in 0..threads {
            let folder = format!("sys/devices/system/cpu/cpu{thread}/topology");
            self.file(&format!("{folder}/physical_package_id"), "0\n");
            self.file(&format!("{folder}/core_id"), &format!("{}\n", thread / 2));
        }
        for (index, (kind, level, size)) in
            [("Data", 1, "48K"), ("Instruction", 1, "32K"), ("Unified", 2, "2048K"), ("Unified", 3, "32M")]
                .into_iter()
                .enumerate()
        {
            let folder = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
            self.file(&format!("{folder}/type"), &format!("{kind}\n"));
            self.file(&format!("{folder}/level"), &format!("{level}\n"));
            self.file(&format!("{folder}/size"), &format!("{size}\n"));
        }
        self.file("proc/meminfo", "MemTotal:       1024 kB\nMemAvailable:    512 kB\n")
    }

    fn logical_cores(&self) -> u32 {
        detect_cpu_at(self.0.path()).cpu().unwrap().logical_cores
    }
}

impl AsRef<Path> for Machine {
    fn as_ref(&self) -> &Path {
        self.0.path()
    }
}

#[test]
fn cpu_is_detected_from_files() {
    let machine = Machine::new();
    machine.processors(8);
    let device = detect_cpu_at(machine.as_ref());
    let spec = device.cpu().unwrap();
    assert_eq!((device.vendor, device.name.as_str()), (Vendor::Amd, "AMD EPYC"));
    assert_eq!((spec.cores, spec.logical_cores), (4, 8));
    assert_eq!((spec.l1d_bytes, spec.l2_bytes, spec.l3_bytes), (48 << 10, 2 << 20, 32 << 20));
    assert_eq!(spec.memory_bytes, Some(1 << 20));
    assert!(spec.isa.has(Isa::Sse42) && spec.isa.has(Isa::Avx512F) && spec.isa.has(Isa::AmxTile));
    assert!(!spec.isa.has(Isa::Avx512Bf16));
}

#[test]
fn arm_feature_names_are_mapped() {
    let machine = Machine::new();
    machine.file(
        "proc/cpuinfo",
        "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp sve sve2 bf16 i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd49\n",
    );
    let device = detect_cpu_at(machine.as_ref());
    assert_eq!(device.cpu().unwrap().model, "0xd49", "the part number tells processors apart");
    assert_eq!(device.vendor, Vendor::Arm);
    assert_eq!(device.isa().to_string(), "neon fp16 dotprod bf16 i8mm sve sve2");
}

#[test]
fn cgroup_v1_and_v2_quotas_are_read() {
    let machine = Machine::new();
    machine.processors(8);
    assert_eq!(machine.logical_cores(), 8);

    machine.file("proc/self/cgroup", "0::/service/worker\n");
    machine.file("sys/fs/cgroup/service/worker/cpu.max", "max 100000\n");
    assert_eq!(machine.logical_cores(), 8, "max is no quota");
    machine.file("sys/fs/cgroup/service/cpu.max", "350000 100000\n");
    assert_eq!(machine.logical_cores(), 3, "a parent's quota binds, rounded down");
    machine.file("sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_eq!(machine.logical_cores(), 1, "never below one");

    let old = Machine::new();
    old.processors(8);
    old.file("proc/self/cgroup", "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n");
    old.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    old.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_eq!(old.logical_cores(), 8);
    old.file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "200000\n");
    assert_eq!(old.logical_cores(), 2, "the container's own group is the mount itself");
    assert_eq!(detect_cpu_at(old.as_ref()).cpu().unwrap().cores, 2);
}

#[test]
fn affinity_limits_cores_and_changes_the_identity() {
    let machine = Machine::new();
    machine.processors(8);
    let whole = detect_cpu_at(machine.as_ref());
    machine.file("proc/self/status", "Cpus_allowed_list:\t1,4-5\n");
    let part = detect_cpu_at(machine.as_ref());
    let spec = part.cpu().unwrap();
    assert_eq!((spec.logical_cores, spec.cores), (3, 2));
    assert_ne!(whole.uuid, part.uuid);
}

#[test]
fn amd_gpus_are_read_from_the_topology() {
    let machine = Machine::new();
    assert!(matches!(detect_rocm_at(machine.as_ref()), Err(AbsenceReason::DriverMissing { .. })));
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    machine.file(&format!("{nodes}/0/properties"), "cpu_cores_count 64\ngfx_target_version 0\n");
    assert_eq!(detect_rocm_at(machine.as_ref()), Err(AbsenceReason::NoDevices));
    machine.file(
        &format!("{nodes}/1/properties"),
        "simd_count 1216\nsimd_per_cu 4\nwave_front_size 64\nlds_size_in_kb 64\ngfx_target_version 90402\nunique_id 255\n",
    );
    machine.file(&format!("{nodes}/1/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 1000\n");
    machine.file("opt/rocm/.info/version", "6.3.1-48\n");
    let devices = detect_rocm_at(machine.as_ref()).unwrap();
    let spec = devices[0].rocm().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!((spec.gfx.as_str(), spec.family.as_deref()), ("gfx942", Some("cdna3")));
    assert_eq!((spec.compute_units, spec.wavefront_size, spec.memory_bytes), (304, 64, 1000));
    assert_eq!((devices[0].platform(), devices[0].uuid.as_str()), (Platform::Rocm, "GPU-00000000000000ff"));
    assert_eq!(devices[0].hardware_signature(), "rocm_gfx942_rocm63");
}

#[test]
fn free_memory_is_the_minimum_of_kernel_and_cgroups() {
    let machine = Machine::new();
    let nowhere = Path::new("/nonexistent");
    let memory = FreeMemory::at(machine.0.path(), nowhere, nowhere);
    let free = || memory.bytes(&lz_device::detect_cpu());
    assert_eq!(free(), None, "no file states it");
    machine.file("proc/meminfo", "MemTotal:       16000 kB\nMemAvailable:    9000 kB\n");
    assert_eq!(free(), Some(9000 << 10));
    // A v2 cgroup; its parent has a lower limit, and reclaimable file pages count as free.
    machine.file("proc/self/cgroup", "0::/outer/inner\n");
    machine.file("sys/fs/cgroup/outer/inner/memory.max", "max\n");
    machine.file("sys/fs/cgroup/outer/memory.max", "4194304\n");
    machine.file("sys/fs/cgroup/outer/memory.current", "3145728\n");
    machine.file("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 1048576\n");
    assert_eq!(free(), Some(2 << 20));
    // A v1 cgroup that is already over its limit.
    machine.file("proc/self/cgroup", "5:cpu:/x\n4:memory:/job\n");
    machine.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000\n");
    machine.file("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "2000\n");
    assert_eq!(free(), Some(0));
}
