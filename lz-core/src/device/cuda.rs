//! Details of an NVIDIA GPU. Plain data: `cuda_driver` reads them from the driver.

use serde::{Deserialize, Serialize};

use super::{Generation, GenerationTable, InstructionSet};

/// Features that the hardware supports natively.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaSupports {
    /// Half precision.
    pub f16: bool,
    /// Brain floats.
    pub bf16: bool,
    /// TF32 matrix products.
    pub tf32: bool,
    /// 8-bit floats.
    pub f8: bool,
    /// 4-bit floats with block scales.
    pub f4: bool,
    /// Tensor cores of any generation.
    pub tensor_cores: bool,
    /// CUDA graphs.
    pub graphs: bool,
    /// Cooperative launches.
    pub cooperative_launch: bool,
    /// Stream-ordered memory pools.
    pub memory_pools: bool,
}

impl CudaSupports {
    /// What a compute capability implies.
    pub const fn for_sm(sm: u32) -> CudaSupports {
        CudaSupports {
            f16: sm >= 53,
            bf16: sm >= 80,
            tf32: sm >= 80,
            f8: sm >= 89,
            f4: sm >= 100,
            tensor_cores: sm >= 70,
            graphs: true,
            cooperative_launch: sm >= 60,
            memory_pools: sm >= 60,
        }
    }
}

/// An NVIDIA GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaSpec {
    /// Compute capability as one number: 90 for 9.0.
    pub sm: u32,
    /// The generation, if the table contains the compute capability.
    pub generation: Option<Generation>,
    /// Tensor-core generation; 0 if the table does not contain it.
    pub tensor_core_generation: u32,
    /// Tensor-core instruction sets.
    pub instruction_sets: Vec<InstructionSet>,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Largest launch grid in each dimension, in blocks.
    pub max_grid: [u64; 3],
    /// Largest block in each dimension, in threads.
    pub max_block: [u32; 3],
    /// Maximum number of threads in one block.
    pub max_threads_per_block: u32,
    /// Maximum opt-in shared memory of one block, in bytes.
    pub max_shared_memory_per_block: u32,
    /// Second-level cache in bytes; 0 when unknown.
    pub l2_bytes: u64,
    /// Version of the kernel driver, such as `580.65.06`; empty without NVML.
    pub driver_version: String,
    /// Newest CUDA version that the driver supports, such as `13.0`; empty when unknown.
    pub cuda_version: String,
    /// Features that the hardware supports natively.
    pub supports: CudaSupports,
}

impl CudaSpec {
    /// Sets generation, tensor cores and instruction sets from a table.
    pub fn classify(&mut self, table: &GenerationTable) {
        let row = table.lookup(self.sm);
        self.generation = row.map(|row| row.generation.clone());
        self.tensor_core_generation = row.map_or(0, |row| row.tensor_core_generation);
        self.instruction_sets = row.map(|row| row.instruction_sets.clone()).unwrap_or_default();
    }

    /// A spec with the limits common to all compute capabilities from 5.0 on, classified by `table`.
    pub fn for_sm(sm: u32, table: &GenerationTable) -> CudaSpec {
        let mut spec = CudaSpec {
            sm,
            generation: None,
            tensor_core_generation: 0,
            instruction_sets: Vec::new(),
            memory_bytes: 0,
            sm_count: 0,
            max_grid: [2_147_483_647, 65_535, 65_535],
            max_block: [1024, 1024, 64],
            max_threads_per_block: 1024,
            max_shared_memory_per_block: 48 * 1024,
            l2_bytes: 0,
            driver_version: String::new(),
            cuda_version: String::new(),
            supports: CudaSupports::for_sm(sm),
        };
        spec.classify(table);
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classify_only_sets_what_the_table_defines() {
        let mut table = GenerationTable::default();
        let mut spec = CudaSpec::for_sm(70, &table);
        assert_eq!((spec.generation.clone(), spec.tensor_core_generation), (None, 0));
        spec.memory_bytes = 5;
        let mut volta = table.lookup(75).cloned().unwrap();
        (volta.first_sm, volta.last_sm) = (70, 74);
        (volta.generation, volta.tensor_core_generation) = (Generation::named("VOLTA"), 1);
        table.extend([volta]).unwrap();
        spec.classify(&table);
        assert_eq!(spec.generation, Some(Generation::named("volta")));
        assert_eq!((spec.tensor_core_generation, spec.memory_bytes), (1, 5));
    }

    #[test]
    fn small_float_support_follows_the_generation() {
        assert!(!CudaSupports::for_sm(75).bf16 && CudaSupports::for_sm(80).bf16);
        assert!(!CudaSupports::for_sm(86).f8 && CudaSupports::for_sm(89).f8);
        assert!(!CudaSupports::for_sm(90).f4 && CudaSupports::for_sm(100).f4);
    }
}
