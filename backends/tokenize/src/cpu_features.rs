//! Instructions that the processor has beyond those of its architecture.

/// Whether the processor has the instructions of functions with the target features `avx512f`, `avx512bw`, `avx512dq`, `avx512vl`, `bmi1`, `bmi2` and
/// `popcnt`.
#[inline]
pub fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("popcnt")
}
