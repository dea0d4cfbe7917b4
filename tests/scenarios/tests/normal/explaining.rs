//! `which` and `explain`: which kernel runs and why.

use lz_engine::explain::CacheState;
use lz_engine::registry::BackendState;
use lz_scenarios::calls::{Norm, Prefill, ScenarioCall};
use lz_scenarios::engines::{apply_policy, engine_on, full_engine, host_engine, host_spec};

/// Which kernel ran in each layer (vllm#28085): `which` for each layer of a Gemma-like model with alternating
/// sliding windows.
#[test]
fn which_reports_the_kernel_of_each_layer() {
    let engine = engine_on("h100");
    apply_policy(
        &engine,
        "rules:\n  - match: { operation: attention.*, window_left: '>=0' }\n    prefer: torch.sdpa.cudnn\n    deny: flash_attn\n",
    );
    let layers: Vec<String> = (0..26)
        .map(|layer| {
            let window_left = if layer % 2 == 0 { 4095 } else { -1 };
            Prefill { window_left, ..Prefill::llama3_8b() }.selected(&engine).unwrap()
        })
        .collect();
    for pair in layers.chunks(2) {
        assert_eq!(pair, ["torch.sdpa.cudnn", "flash_attn.v3.prefill"]);
    }
}

/// The table that `explain` prints: the selected kernel is marked, with all score terms and all rejection
/// reasons.
#[test]
fn an_explanation_prints_as_a_table() {
    let engine = engine_on("h100");
    apply_policy(&engine, "prefer_sources: [torch]\n");
    let text = Prefill::llama3_8b().explain(&engine).to_string();
    // The second line contains the elapsed time.
    let lines: Vec<&str> =
        text.lines().enumerate().filter(|(at, _)| *at != 1).map(|(_, line)| line).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

/// The same explanation as JSON for a dashboard: every candidate with its score, every reason with its code.
#[test]
fn an_explanation_serializes_to_json() {
    let json = serde_json::to_value(Prefill::llama3_8b().explain(&engine_on("h100"))).unwrap();
    assert_eq!(json["operation"], "attention.gqa.prefill");
    assert_eq!(json["plan"]["kernel"], "flash_attn.v3.prefill");
    let candidates = json["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 13);
    let efficient = candidates.iter().find(|one| one["kernel"] == "torch.sdpa.efficient").unwrap();
    assert_eq!(efficient["reasons"][0]["code"], "GQA_UNSUPPORTED");
    assert_eq!(efficient["reasons"][0]["required"], "heads == kv_heads");
    assert_eq!(efficient["reasons"][0]["found"], "heads = 32, kv_heads = 8");
    assert_eq!(candidates.iter().filter(|one| one["chosen"] == true).count(), 1);
}

/// The plan lists the fallbacks in the order in which they would run.
#[test]
fn a_plan_lists_its_fallbacks() {
    let plan = Prefill::llama3_8b().which(&engine_on("h100")).unwrap();
    assert_eq!(
        plan.fallbacks,
        ["flash_attn.v2.prefill", "torch.sdpa.flash", "torch.sdpa.cudnn", "torch.sdpa.math"]
    );
    let adapted = Prefill::llama3_8b().explain(&engine_on("h100"));
    let sdpa = adapted.candidate("torch.sdpa.flash").unwrap();
    assert_eq!(
        (sdpa.transforms.to_string().as_str(), sdpa.score.transform, sdpa.total),
        ("layout", -2.0, 58.0)
    );
}

/// The second call of a shape hits the decision cache, a call of another bucket misses, and the explanation
/// reports it.
#[test]
fn a_cache_hit_is_reported() {
    let engine = host_engine([host_spec("alpha.x"), host_spec("beta.x")]);
    let state = |rows| Norm::rows(rows).explain(&engine).cache;
    assert_eq!(state(4), CacheState::NotCached);
    assert_eq!(Norm::rows(4).serve(&engine).unwrap(), "alpha.x");
    assert_eq!(
        (state(4), state(16), state(17)),
        (CacheState::Cached, CacheState::Cached, CacheState::NotCached)
    );
    assert_eq!(engine.cached_decisions(), 1);
}

/// The inventory: operations, kernels with their versions, backends with their state.
#[test]
fn the_inventory_can_be_listed() {
    let engine = full_engine();
    let registry = engine.registry();
    assert_eq!(registry.operations().count(), lz_ops::OPERATIONS.len());
    let versions: Vec<(&str, &str)> =
        registry.backends().map(|(name, backend)| (name, backend.version.as_str())).collect();
    for expected in
        [("flash_attn", "2.8.3"), ("flashinfer", "0.6.4"), ("torch", "2.11.0"), ("liger", "0.8.5")]
    {
        assert!(versions.contains(&expected), "{expected:?} in {versions:?}");
    }
    assert!(registry.backends().all(|(_, backend)| backend.state == BackendState::Available));
    let norm = registry.operation("norm.rms").unwrap();
    let kernels: Vec<&str> = registry.kernels_of(norm).map(|entry| entry.spec.id.as_str()).collect();
    let (others, native): (Vec<&str>, Vec<&str>) = kernels.iter().partition(|id| !id.starts_with("cpu."));
    assert_eq!(others, ["reference.norm.rms", "flashinfer.norm.rms", "torch.norm.rms", "liger.norm.rms"]);
    assert!(!native.is_empty());
}

/// A preference in the policy file changed the selection: the explanation names the file, the line and the
/// points.
#[test]
fn an_applied_rule_is_reported_with_file_and_line() {
    let engine = engine_on("h100");
    apply_policy(
        &engine,
        "version: 1\nprefer_sources:\n  - torch\nrules:\n  - condition: seq_len >= 2048\n    prefer: torch.sdpa.cudnn\n",
    );
    let explanation = Prefill::llama3_8b().explain(&engine);
    assert_eq!(explanation.chosen(), Some("torch.sdpa.cudnn"));
    let lines: Vec<(&str, f64)> = explanation
        .candidate("torch.sdpa.cudnn")
        .unwrap()
        .policy
        .iter()
        .map(|line| (line.source.as_str(), line.points))
        .collect();
    assert_eq!(lines, [("layerzero.yaml:3", 20.0), ("layerzero.yaml:5", 20.0)]);
}
