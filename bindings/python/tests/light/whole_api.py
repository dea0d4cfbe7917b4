"""Uses the whole API, for the type checker only; it is never run."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import layerzero as lz
from layerzero import protocols

Array = npt.NDArray[np.float32]


def calls(x: Array, w: Array, q: Array, ids: npt.NDArray[np.int32]) -> None:
    y: Array = lz.ops.norm_rms(x, w, eps=1e-6, out=x)
    plan: lz.PlanHandle = lz.ops.norm_rms.plan(x, w)
    planned: Array = lz.ops.norm_rms.plan(x, w).run(x, w, out=y)
    y = lz.rms_norm(x, w)
    y = lz.layer_norm(x, w, w)
    y = lz.rope(x, w, w, interleaved=True, layout="BHSD")
    lz.attention(q, q, q, causal=True, layout="BSHD", return_lse=True)
    lz.paged_attention(q, q, q, block_tables=ids, context_lens=ids)
    lz.sample_topk(x, 4, seed=1)
    lz.sample_topp(x, 0.9, temperature=0.5)
    stored, scale = lz.quantize(x, "int8")
    y = lz.dequantize(x, w, "int8", output_dtype="f32")
    tokens = lz.tokenize(["a"], "tokenizer.json", return_offsets=True)
    lz.detokenize([1, 2], lz.Tokenizer.from_file("tokenizer.json"))
    flat: lz.FlatTokens = lz.tokenize(["a"], "tokenizer.json", as_arrays=True)
    batch: lz.TokenBatch = lz.tokenize_batch(["a"], "tokenizer.json", ["b"], max_length=8, padding="max_length", pad_id="<pad>")
    tokenizer = lz.Tokenizer.from_tiktoken("ranks.tiktoken", pattern="cl100k_base", special_tokens={"<|end|>": 9})
    stream: lz.TextStream = tokenizer.stream(skip_special_tokens=False)
    tokenizer.with_chat_template("{{ messages }}").apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)
    text: str = stream.push(1) + stream.push([2, 3]) + stream.finish()
    print(flat.indptr, batch.input_ids, text, tokenizer.vocab_size, tokenizer.token_to_id("a"), lz.count_tokens("a", tokenizer))
    print(y, stored, scale, tokens, plan.kernel, plan.operation, planned)


def models(model: Any, x: Array) -> None:
    compiled: lz.CompiledModel = lz.compile(model, (x,), weights="int4", group=32)
    accuracy: lz.Accuracy | None = compiled.accuracy
    layers: list[lz.QuantizedLayer] = [] if accuracy is None else accuracy.layers
    generator = lz.Generator(model, cache="paged", weights="int8", activations="int8")
    lz.generate(generator, [[1, 2], [3]], max_new_tokens=4, top_p=0.9, seed=1, stop=[[5, 6]], stream=print)
    session: lz.GenerationSession = generator.session()
    session.step({0: [1, 2]})
    session.truncate(0, 1)
    print(layers, list(generator.stream([1, 2], temperature=0.5)), session.lengths, session.nbytes)


def questions(x: Array) -> None:
    plan: lz.Plan = lz.which("norm.rms", x)
    kernel: str = plan.kernel_id
    explanation: lz.Explanation = lz.explain("norm.rms", x)
    data: dict[str, Any] = explanation.to_dict()
    names: list[str] = lz.list_operations()
    kernels: list[dict[str, Any]] = lz.list_kernels("norm.rms", backend="cpu")
    codes = [reason.code for reason in lz.validate("norm.rms", x)]
    report: lz.Report = lz.doctor()
    print(kernel, data, names, kernels, codes, report, lz.readiness_check().to_dict(), lz.__version__)


def fleets() -> None:
    difference: lz.Report = lz.perfdb.diff("a.sqlite", "b.sqlite@torch=2.14", threshold=0.1, fail_on="change")
    merged: lz.Report = lz.perfdb.merge("all.sqlite", "a.sqlite", "b.sqlite")
    public: str = lz.perfdb.keygen("fleet.key")
    lz.perfdb.push("s3://bucket/a.sqlite", key="fleet.key", file="a.sqlite")
    lz.perfdb.pull("s3://bucket/all.sqlite", keys=[public], to="all.sqlite")
    print(difference, merged)


def together(x: Array, w: Array) -> None:
    block: list[tuple[str, dict[str, Any]]] = [("norm.rms", {"x": x, "weight": w}), ("activation.silu", {})]
    planned: lz.BlockPlan = lz.plan_block(block, dtypes=["bfloat16"], device="h100")
    run: lz.BlockRun = lz.run_block(block)
    choice: lz.FormatChoice = lz.choose_format({"int8": ("quantize", {"x": x, "format": "int8"})}, stored="int8")
    pair: lz.SpeculativePair = lz.speculative_pair(block[0], block[0], pipeline_stages=(1, 1))
    tokens: int = lz.speculative_tokens(8)
    print(planned.data, run.outputs, run.kernels, run.plan, choice.format, choice.requantize, pair.draft, pair.target, tokens)


def telemetry() -> None:
    counters: dict[str, Any] = lz.metrics()
    text: str = lz.metrics_text()
    with lz.record("trace.json"):
        lz.flush_logs()
    lz.start_recording()
    lz.stop_recording("trace.json")
    done: bool = lz.wait_for_verification(1.0)
    replayed: lz.Report = lz.repro("file.safetensors", export="folder")
    print(counters, text, done, replayed)


def control() -> None:
    lz.configure(deterministic=True)
    lz.configure({"cache.max_size": 10})
    lz.load_config("layerzero.yaml")
    print(lz.config()["deterministic"].source)
    lz.lock("norm.rms", "reference.norm.rms")
    lz.unlock("norm.rms")
    with lz.prefer("cpu"), lz.disabled():
        pass


def override() -> None:
    with lz.override_torch(["linear"]) as overridden:
        pass
    counted: lz.Overridden = overridden
    print(counted.calls["linear"], counted.fallbacks)


def names(x: Array) -> None:
    operation: lz.Operation = lz.register_operation("mine.yaml", replace=True)
    lz.import_definition("definition.json", trust_reference=True)
    try:
        lz.which("norm.rm", x)
    except lz.UnknownOperationError as error:
        print(error.reasons, operation)
    lz.unregister_kernel("mine.norm.rms", operation="norm.rms")
    lz.unregister_operation("mine.operation")


def reload() -> None:
    done: lz.PluginReload = lz.reload_plugin("new.so", drain_seconds=1)
    other: lz.Plugin = lz.load_plugin("new.so", alongside=True)
    isolated: lz.IsolatedBackend = lz.isolate_backend("legacy", "legacy_kernels", python="/opt/legacy/bin/python", path=["/opt"], environment={"A": "b"})
    lz.configure({"rollout.shares": {"vendor.norm.rms@2.0": 10}})
    states: list[str] = [one["state"] for one in lz.canaries()]
    lz.promote_version("vendor.norm.rms@2.0")
    lz.roll_back_version("vendor.norm.rms@2.0")
    with lz.watch_config("layerzero.yaml", lambda state, message: print(state, message)) as watch:
        watched: lz.ConfigWatch = watch
    print(done.unloaded, other.kernels, isolated.runs_in, states, watched.is_open())


def page() -> None:
    with lz.serve(port=0) as server:
        url: str = server.url
    other: lz.Server = lz.serve(perfdb="perfdb.sqlite", lockfiles=("old.lock", "new.lock"))
    other.close()
    print(url, other.port)


def preparation(x: Array) -> None:
    best: lz.Report = lz.tune("norm.rms", x, samples=5, progress=False)
    lz.warmup([("norm.rms", {"x": x})], manifest="warm.json")
    lz.verify_capture([("norm.rms", {"x": x})], seconds=60.0)
    lz.prepare_capture([("norm.rms", {"x": x})])
    cache: lz.KvCache = lz.kv_cache("paged", batch=1, kv_heads=1, head_dim=8, capacity=64, dtype=None, device="cpu")
    cache.append(x, x)
    print(cache.attend(x), cache.nbytes)
    print(best.to_dict(), lz.dry_run([("norm.rms", {"x": x})]), lz.load_dispatch_table("table.json"))
    print(lz.solve([("norm.rms", {"x": x})], operations=["norm.layer"], path="table.json", ranges={"rows": (1, 8)}))
    lz.record_decisions()
    print(lz.freeze("layerzero.lock"), lz.verify_lockfile(), lz.load_backends("torch"))


@lz.register_kernel(operation="norm.rms", id="mine.norm.rms", dtypes=["float32"], limits=["hidden % 8 == 0"])
def kernel(x: Any, weight: Any, /, *, eps: float, weight_offset: float) -> Any:
    return x


typed: protocols.NormRms = kernel
operation: lz.Operation = lz.register_operation("mine.yaml")
layout: Literal["BSHD"] = "BSHD"
lz.unregister_backend("mine")

try:
    lz.ops.norm_rms(np.ones(3, np.float32))
except lz.ValidationError as error:
    print([(reason.code, reason.argument, reason.axis, reason.required, reason.found) for reason in error.reasons])
except (lz.NoKernelFoundError, lz.KernelExecutionError, lz.CudaGraphUnsafeError, lz.ConfigurationError):
    raise
except lz.LayerZeroError:
    raise
