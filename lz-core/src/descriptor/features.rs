//! Maps features of descriptors to names of schemas. A feature that a kernel does not claim becomes a limit.
//!
//! Independent of operations: an entry applies to every operation with an input or param of that name.

use lz_schema::model::{Constant, Operation, Param, ParamType};

use crate::generated::contracts::capabilities_v1::KernelCapabilities;
use crate::reason::ReasonCode;
use crate::spec::Limit;

/// A feature: whether a kernel claims it, the inputs and params that use it, and the reason if it is missing.
struct Feature {
    claimed: fn(&KernelCapabilities) -> bool,
    names: &'static [&'static str],
    code: ReasonCode,
}

const FEATURES: [Feature; 8] = [
    Feature {
        claimed: |kernel| kernel.supports_attn_mask,
        names: &["mask"],
        code: ReasonCode::AttnMaskUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_alibi,
        names: &["alibi_slopes"],
        code: ReasonCode::AlibiUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_scale,
        names: &["sm_scale", "scale"],
        code: ReasonCode::ScaleUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_causal,
        names: &["causal"],
        code: ReasonCode::CausalUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_causal_offset,
        names: &["causal_offset"],
        code: ReasonCode::CausalUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_window,
        names: &["window_left", "window_right"],
        code: ReasonCode::WindowUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_softcap,
        names: &["soft_cap"],
        code: ReasonCode::SoftcapUnsupported,
    },
    Feature {
        claimed: |kernel| kernel.supports_lse,
        names: &["return_lse"],
        code: ReasonCode::LseUnsupported,
    },
];

/// Params that are covered by other parts of a descriptor.
const COVERED_ELSEWHERE: [&str; 2] = ["layout", "format"];

/// Limits for every optional input and param that the kernel does not claim; `fixed` are the params that the alias fixes.
pub(super) fn limits(operation: &Operation, kernel: &KernelCapabilities, fixed: &[&str]) -> Vec<Limit> {
    let mut limits = Vec::new();
    let feature = |name: &str| FEATURES.iter().find(|feature| feature.names.contains(&name));
    for input in operation.inputs.iter().filter(|input| input.optional.is_some()) {
        let (claimed, code) = match feature(&input.name) {
            Some(feature) => ((feature.claimed)(kernel), feature.code),
            None if input.name.ends_with("mask") => (false, ReasonCode::MaskUnsupported),
            None => (false, ReasonCode::OptionalInputUnsupported),
        };
        if !claimed && !kernel.optional_inputs.contains(&input.name) {
            limits.push(Limit { check: format!("not given({})", input.name), code });
        }
    }
    for param in operation.kernel_params() {
        if COVERED_ELSEWHERE.contains(&param.name.as_str()) || fixed.contains(&param.name.as_str()) {
            continue;
        }
        let (claimed, code) = match feature(&param.name) {
            Some(feature) => ((feature.claimed)(kernel), feature.code),
            None => (false, ReasonCode::ParamUnsupported),
        };
        if claimed || kernel.params.contains(&param.name) {
            continue;
        }
        limits.extend(at_default(param).map(|check| Limit { check, code }));
    }
    limits
}

/// The condition that a param has its default; `None` for a required param.
fn at_default(param: &Param) -> Option<String> {
    let default = param.default.as_ref()?;
    let (name, text) = (&param.name, default.text.trim());
    Some(match &param.ty {
        ParamType::F32 | ParamType::F64 if text.parse() == Ok(0.0) => format!("{name} == 0"),
        // An f32 param equals its default only up to rounding.
        ParamType::F32 | ParamType::F64 => {
            format!("abs({name} - ({text})) <= 0.000001 * abs({text})")
        }
        ParamType::Enum(_) => format!("{name} == {text}"),
        ParamType::Bool if text == "false" => format!("not {name}"),
        ParamType::Bool if text == "true" => name.clone(),
        ParamType::Bool | ParamType::Int => format!("{name} == ({text})"),
    })
}

/// The condition that a param has the value that an alias fixes, and the reason if it does not.
pub(super) fn fixed(param: &Param, value: &Constant) -> Limit {
    let name = &param.name;
    let check = match (value, &param.ty) {
        (Constant::Bool(true), _) => name.clone(),
        (Constant::Bool(false), _) => format!("not {name}"),
        (Constant::Int(value), _) => format!("{name} == {value}"),
        (Constant::Float(value), _) => format!("abs({name} - {value:?}) <= 0.000001 * abs({value:?})"),
        (Constant::Enum(case), ParamType::Enum(cases)) => {
            format!("{name} == {}", cases.get(*case as usize).map_or("", String::as_str))
        }
        (Constant::Enum(_), _) => "false".to_owned(),
    };
    let code = FEATURES
        .iter()
        .find(|feature| feature.names.contains(&name.as_str()))
        .map_or(ReasonCode::ParamUnsupported, |feature| feature.code);
    Limit { check, code }
}
