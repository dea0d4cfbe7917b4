"""Compiled models on a GPU: tiny models compared with eager execution, captures per size, generation, saved and quantized models, primitives.

CI has no such device. Prints one line per check and a summary; exits with 1 if a check failed.

    python graph.py [--output FILE.json]
"""

import argparse
import collections
import json
import sys
import time
import traceback
import types
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "torch"))

import layerzero as lz  # noqa: E402

DEVICE = torch.device("cuda", 0)
FOUND = []


def check(name):
    """Runs a function as one check, and records how it ended."""

    def decorate(function):
        began = time.monotonic()
        try:
            about = function() or ""
            problem = None
        except Exception as error:
            traceback.print_exc(limit=8)
            about, problem = "", f"{type(error).__name__}: {error}"[:400]
        torch.cuda.synchronize()
        seconds = time.monotonic() - began
        FOUND.append({"check": name, "ok": problem is None, "about": str(about), "problem": problem, "seconds": round(seconds, 2)})
        print(f"{'ok  ' if problem is None else 'FAIL'} {seconds:6.2f} s  {name}: {problem or about}", flush=True)
        return function

    return decorate


def tiny(name, dtype):
    """A tiny model with random weights on the GPU, and whether it is causal."""
    import transformers

    torch.manual_seed(0)
    common = {"vocab_size": 257, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    decoder = {**common, "num_key_value_heads": 2, "max_position_embeddings": 256}
    if name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**common, max_position_embeddings=256))
    elif name == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**decoder))
    elif name == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**decoder, head_dim=32))
    else:
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**decoder, head_dim=32, sliding_window=16))
    return model.to(DEVICE, dtype).eval()


class Plain(torch.nn.Module):
    """The first tensor of a model's result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        arguments = {} if isinstance(self.model.config.use_cache, type(None)) else {"use_cache": False}
        result = self.model(input_ids=input_ids, **arguments)
        return result.logits if hasattr(result, "logits") else result.last_hidden_state


def kernels_of(compiled, *inputs):
    counts = collections.Counter(step["kernel"] for step in compiled.plan(*inputs)["steps"])
    return ", ".join(f"{count} {kernel}" for kernel, count in counts.most_common(8))


def close(found, expected, dtype):
    tolerance = {torch.float32: 2e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}[dtype]
    largest = max(1.0, float(expected.float().abs().max()))
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance * largest)


#: Sequences and tokens.
SIZES = ((2, 9), (1, 1), (3, 33))


def compile_for(model, sizes):
    """A compiled model per size: one for all if torch can export the model so."""
    names = ({0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=128)},)
    sample = torch.randint(257, (2, 9), device=DEVICE)
    try:
        return dict.fromkeys(sizes, lz.compile(model, (sample,), dynamic_shapes=names))
    except torch._dynamo.exc.UserError as error:
        # torch 2.11 cannot export grouped heads with a symbolic length.
        print("     one model per size:", str(error).splitlines()[0])
        return {size: lz.compile(model, (torch.randint(257, size, device=DEVICE),)) for size in sizes}


def models():
    for name in ("llama", "qwen3", "gemma2", "bert"):
        for dtype in (torch.bfloat16, torch.float32):

            @check(f"{name} {str(dtype).removeprefix('torch.')}")
            def one(name=name, dtype=dtype):
                model = Plain(tiny(name, dtype)).eval()
                every, captured = compile_for(model, SIZES), 0
                for batch, length in SIZES:
                    compiled = every[batch, length]
                    # The second run is captured, and the third one replays.
                    for _ in range(4):
                        ids = torch.randint(257, (batch, length), device=DEVICE)
                        with torch.no_grad():
                            close(compiled(ids), model(ids), dtype)
                    data = compiled.plan(ids)
                    captured += data["captured"]
                return (
                    f"{len(set(every.values()))} models, {captured} of {len(SIZES)} sizes captured ({data['not_captured']}), "
                    f"fallbacks {compiled.fallbacks}; {kernels_of(compiled, ids)}"
                )


def generation():
    for name in ("llama", "qwen3", "gemma2"):
        for cache in ("contiguous", "paged"):

            @check(f"generation {name} {cache}")
            def one(name=name, cache=cache):
                model = tiny(name, torch.float32)
                generator = lz.Generator(model, cache=cache, validation="strict")
                prompts = [torch.randint(257, (length,)).tolist() for length in (5, 11, 3)]
                found = lz.generate(generator, prompts, max_new_tokens=24, eos=())
                for prompt, tokens in zip(prompts, found, strict=True):
                    ids = torch.tensor([prompt], device=DEVICE)
                    expected = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
                    assert expected[0, len(prompt) :].tolist() == tokens, (expected[0, len(prompt) :].tolist(), tokens)
                graph = generator._graph
                return f"{graph.cached_plans} programs, {graph.captured} captured, fallbacks {generator.fallbacks}"

            @check(f"generation {name} {cache} bfloat16")
            def half(name=name, cache=cache):
                model = tiny(name, torch.bfloat16)
                generator = lz.Generator(model, cache=cache)
                session = generator.session()
                session.reserve({0: 64, 1: 64})
                ids = torch.randint(257, (2, 40))
                session.step({row: ids[row, :9].tolist() for row in (0, 1)})
                # Decode steps follow each other without waiting for the device.
                logits = [session.step({row: [int(ids[row, at])] for row in (0, 1)}) for at in range(9, 40)]
                with torch.no_grad():
                    expected = model(input_ids=ids.to(DEVICE), use_cache=False).logits[:, 9:]
                close(torch.stack(logits, 1), expected, torch.bfloat16)
                graph = generator._graph
                decode = list(graph._prepared.values())[-1]
                kernels = collections.Counter(step.kernel for step in decode.program.steps)
                return f"{graph.captured} captured ({decode.not_captured}), {dict(kernels.most_common(9))}"


def refusals():
    @check("an input of the host is refused")
    def host():
        compiled = lz.compile(torch.nn.Linear(8, 8).to(DEVICE).eval(), (torch.randn(2, 8, device=DEVICE),))
        try:
            compiled(torch.randn(2, 8))
        except lz.ValidationError as error:
            return error
        raise AssertionError("it ran")

    @check("another stream waits for the run before")
    def streams():
        model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).to(DEVICE).eval()
        compiled = lz.compile(model, (torch.randn(64, 1024, device=DEVICE),))
        other = torch.cuda.Stream()
        for _ in range(10):
            x, y = torch.randn(2, 64, 1024, device=DEVICE)
            other.wait_stream(torch.cuda.current_stream())
            first = compiled(x)
            with torch.cuda.stream(other):
                second = compiled(y)
            torch.cuda.synchronize()
            with torch.no_grad():
                torch.testing.assert_close(first, model(x), rtol=2e-2, atol=2e-2)
                torch.testing.assert_close(second, model(y), rtol=2e-2, atol=2e-2)
        return f"captured {compiled._graph.captured}"


def artifacts():
    """Saved, frozen, measured and quantized models."""
    import tempfile

    folder = Path(tempfile.mkdtemp())

    def ids():
        return torch.randint(257, (2, 9), device=DEVICE)

    def compiled_llama(dtype, **options):
        model = Plain(tiny("llama", dtype)).eval()
        return model, lz.compile(model, (ids(),), **options)

    @check("a saved model is loaded onto the GPU")
    def saved():
        model, compiled = compiled_llama(torch.bfloat16)
        x = ids()
        expected = compiled(x)
        compiled.save(folder / "model.lz")
        loaded = lz.load(folder / "model.lz", device="cuda", verify=True)
        close(loaded(x), expected, torch.bfloat16)
        assert kernels_of(loaded, x) == kernels_of(compiled, x), kernels_of(loaded, x)
        return f"{(folder / 'model.lz').stat().st_size} bytes; {kernels_of(loaded, x)}"

    @check("decisions of a model on the GPU are frozen and verified")
    def frozen():
        _, compiled = compiled_llama(torch.bfloat16)
        x = ids()
        compiled(x)
        text = compiled.freeze(folder / "model.lock")
        assert compiled.verify_lockfile(folder / "model.lock").data["agrees"]
        return f"{len(text)} characters"

    @check("kernels of a model on the GPU are measured")
    def tuned():
        _, compiled = compiled_llama(torch.bfloat16)
        x = ids()
        before = compiled(x)
        steps = lz.tune(compiled, x, samples=5).data["steps"]
        assert steps and all(any(state == "measured" for _, state, _ in step["kernels"]) for step in steps), steps
        close(compiled(x), before, torch.bfloat16)
        return f"{len(steps)} different steps; best: {sorted({step['best'] for step in steps})}"

    for options in ({"weights": "int8"}, {"weights": "int4", "group": 32}):

        @check(f"quantized weights on the GPU {options}")
        def quantized(options=options):
            _, compiled = compiled_llama(torch.float32, **options)
            accuracy = compiled.accuracy
            assert accuracy.bytes_after < accuracy.bytes_before and max(accuracy.outputs) < 0.3, accuracy
            return f"{accuracy.bytes_before} to {accuracy.bytes_after} bytes, error {max(accuracy.outputs):.3f}; {kernels_of(compiled, ids())}"


def primitives():
    """The host's test cases on the GPU. pytest need not be installed."""
    if "pytest" not in sys.modules:
        try:
            import pytest  # noqa: F401
        except ImportError:
            sys.modules["pytest"] = stand_in()
    import test_device_primitives as cases

    cases.DEVICE = DEVICE
    for name, function in list(vars(cases).items()):
        if not name.startswith("test_"):
            continue
        every = cases.FLOATS if name.endswith("floats") else cases.INTEGERS if name.endswith("integers") else (None,)
        for dtype in every:
            check(f"{name} {'' if dtype is None else dtype}")(lambda function=function, dtype=dtype: function() if dtype is None else function(dtype))


def stand_in():
    import contextlib

    @contextlib.contextmanager
    def raises(expected, **_):
        try:
            yield
        except expected:
            return
        raise AssertionError(f"{expected} was not raised")

    module = types.ModuleType("pytest")
    module.mark = types.SimpleNamespace(parametrize=lambda *_, **__: lambda function: function)
    module.raises = raises
    return module


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output")
    parser.add_argument("--parts", nargs="*", default=["models", "generation", "refusals", "artifacts", "primitives"])
    options = parser.parse_args()
    print("backends", lz.load_backends(), flush=True)
    for part in options.parts:
        globals()[part]()
    failed = [one["check"] for one in FOUND if not one["ok"]]
    if options.output:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        Path(options.output).write_text(json.dumps({**about, "failed": failed, "checks": FOUND}, indent=1) + "\n")
    print(f"{len(FOUND)} checks, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
