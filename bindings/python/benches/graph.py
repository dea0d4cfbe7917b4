"""Compiled models compared with torch eager, inductor (with freezing), ONNX Runtime and OpenVINO.

All runners of a model run interleaved in one process, block after block, in an order that changes from round to round; the time
of a runner is the best of its blocks. One thread is measured in CPU time of the process, which excludes other work on the machine;
two threads in wall-clock time. The ratio is LayerZero's speed compared with the fastest peer: above 1 LayerZero is faster. A
runner whose library is not installed is reported as missing, one that cannot run the model with its error.

    graph.py [--json] [--models NAMES] [--peers NAMES] [--threads 1,2] [--parts speed,lengths,memory,start] [--seconds S]
"""

import argparse
import contextlib
import gc
import io
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

_FOLDER = tempfile.TemporaryDirectory()
_CONFIG = pathlib.Path(_FOLDER.name) / "layerzero.yaml"
_CONFIG.write_text("version: 1\nperfdb:\n  enabled: false\n")
os.environ.setdefault("LAYERZERO_CONFIG", str(_CONFIG))

import torch  # noqa: E402

import graph_models  # noqa: E402

PEERS = ("eager", "inductor", "onnxruntime", "openvino")
PARTS = ("speed", "lengths", "memory", "start")
# A block is a few runs of one runner. The first run of a block is not counted: another runner's data is in the caches. Runs that take
# long enough for that not to matter are a block each, so that neighboring blocks are measured under the same conditions.
BLOCK_SECONDS, MIN_RUNS, LONG_RUN_SECONDS = 0.06, 3, 0.25


class Missing(Exception):
    """A library that is not installed."""


def layerzero(model, args, threads, path, **options):
    import layerzero as lz

    compiled = lz.compile(model, args, **options)
    return lambda: compiled(*args)


def layerzero_file(model, args, threads, path):
    """As `layerzero`, from a saved model."""
    import layerzero as lz

    compiled = lz.load(path)
    return lambda: compiled(*args)


def eager(model, args, threads, path):
    def run():
        with torch.inference_mode():
            return model(*args)

    return run


def inductor(model, args, threads, path):
    import torch._inductor.config as config

    config.freezing = True
    config.cpp.threads = threads
    torch._dynamo.reset()
    compiled = torch.compile(model)

    def run():
        with torch.no_grad():
            return compiled(*args)

    run()
    return run


def onnx_file(model, args, path):
    """Writes the model as an ONNX file with names `i0`, `i1`, … of its inputs, unless the file exists."""
    if os.path.exists(path):
        return path
    names = [f"i{index}" for index in range(len(args))]
    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, args, path, input_names=names, dynamo=True, external_data=True, verbose=False)
    return path


def onnxruntime(model, args, threads, path):
    try:
        import onnxruntime as ort
    except ImportError:
        raise Missing from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(onnx_file(model, args, path), options, providers=["CPUExecutionProvider"])
    inputs = {f"i{index}": value.numpy() for index, value in enumerate(args)}
    known = {value.name for value in session.get_inputs()}
    inputs = {name: value for name, value in inputs.items() if name in known}
    return lambda: [torch.from_numpy(value) for value in session.run(None, inputs)]


def openvino(model, args, threads, path):
    try:
        import openvino as ov
    except ImportError:
        raise Missing from None
    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(onnx_file(model, args, path)), "CPU", settings)
    request = compiled.create_infer_request()
    inputs = {f"i{index}": value.numpy() for index, value in enumerate(args)}
    known = {name for port in compiled.inputs for name in port.get_names()}
    inputs = {name: value for name, value in inputs.items() if name in known}
    return lambda: [torch.from_numpy(value) for value in request.infer(inputs, share_outputs=True).values()]


RUNNERS = {
    "layerzero": layerzero,
    "layerzero-file": layerzero_file,
    "eager": eager,
    "inductor": inductor,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
}


def first(result):
    return result[0] if isinstance(result, (tuple, list)) else result


def measure(runs, threads, seconds):
    """Milliseconds of each runner: the best block, and the median of the ratios of neighboring blocks to the first runner's."""
    clock = time.process_time_ns if threads == 1 else time.perf_counter_ns
    best = {name: float("inf") for name in runs}
    ratios = {name: [] for name in runs}
    names, begin, turn = list(runs), time.perf_counter(), 0
    counts = {}
    for name, run in runs.items():
        start = time.perf_counter()
        run()
        run()
        one = (time.perf_counter() - start) / 2
        runs_of_block = max(MIN_RUNS, min(2000, int(BLOCK_SECONDS / max(one, 1e-7))))
        counts[name] = 1 if one > LONG_RUN_SECONDS else runs_of_block
    while turn < 3 or time.perf_counter() - begin < seconds:
        # Rotates the order, so that no runner always follows the same one.
        order = names[turn % len(names) :] + names[: turn % len(names)]
        block = {}
        for name in order:
            # Idle workers of the previous runner stop spinning.
            time.sleep(0.004)
            run = runs[name]
            if counts[name] > 1:
                run()
            times = []
            for _ in range(counts[name]):
                start = clock()
                run()
                times.append(clock() - start)
            # Single runs are shorter than the resolution of the CPU clock for tiny models: blocks are summed there.
            block[name] = (statistics.median(times) if min(times) > 20_000 else sum(times) / len(times)) / 1e6
            best[name] = min(best[name], block[name])
        for name in names:
            ratios[name].append(block[name] / block[names[0]])
        turn += 1
    return best, {name: statistics.median(values) for name, values in ratios.items()}


def speed(case, peers, threads, seconds, path):
    torch.manual_seed(0)
    model, args, *options = graph_models.CASES[case]()
    model.eval()
    expected = first(eager(model, args, threads, path)())
    runs, row = {}, {"part": "speed", "model": case, "threads": threads, "errors": {}}
    if options:
        # Quantized weights are compared with the model as it is, in torch.
        peers, row["options"] = [name for name in peers if name == "eager"], options[0]
    for name in ("layerzero", *peers):
        try:
            is_quantized = name == "layerzero" and bool(options)
            run = RUNNERS[name](model, args, threads, path, **(options[0] if is_quantized else {}))
            difference = (first(run()).reshape(expected.shape) - expected).abs().max().item()
            if not difference <= (0.1 if is_quantized else 2e-3) * max(1.0, expected.abs().max().item()):
                raise AssertionError(f"differs from eager by {difference:.2g}")
            runs[name] = run
        except Missing:
            row["errors"][name] = "not installed"
        except Exception as error:
            row["errors"][name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    if not runs:
        return row
    best, ratios = measure(runs, threads, seconds)
    row["ms"] = {name: round(value, 4) for name, value in best.items()}
    others = [name for name in runs if name != "layerzero"]
    if others and "layerzero" in runs:
        fastest = min(others, key=lambda name: best[name])
        row["best_peer"] = fastest
        row["vs_best"] = round(best[fastest] / best["layerzero"], 3)
        row["vs_best_median"] = round(min(ratios[name] for name in others), 3)
    if "eager" in runs and "layerzero" in runs:
        row["vs_eager"] = round(best["eager"] / best["layerzero"], 3)
    return row


def lengths():
    """The first call at a new length compared with the second: the prefill of the LM, one compiled model."""
    import layerzero as lz

    model = graph_models.Lm().eval()
    compiled = lz.compile(model, (graph_models.tokens(16),), dynamic_shapes=({1: torch.export.Dim("length", min=0, max=512)},))
    compiled(graph_models.tokens(24))
    ratios, rows = [], {}
    for length in (64, 96, 33, 128, 17, 200, 2, 256):
        tokens = graph_models.tokens(length)
        times = []
        for _ in range(6):
            start = time.perf_counter()
            compiled(tokens)
            times.append(time.perf_counter() - start)
        rows[length] = [round(times[0] * 1e3, 3), round(min(times[1:]) * 1e3, 3)]
        ratios.append(times[0] / min(times[1:]))
    for length in (0, 1):
        compiled(graph_models.tokens(length))
    return {"part": "lengths", "first_and_second_ms": rows, "ratio": round(statistics.median(ratios), 3)}


def resident(key):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def memory(name, path):
    """Peak memory over import: the prefill of 256 tokens, in a process of its own. The model is a module, or a file at `path`."""
    warm = torch.nn.Linear(4, 4).eval()
    if name == "layerzero-file":
        import layerzero  # noqa: F401
    elif name in ("layerzero", "eager"):
        # Modules that the first export imports count as import.
        RUNNERS[name](warm, (torch.randn(2, 4),), 1, "")()
    elif name == "onnxruntime":
        import onnxruntime  # noqa: F401
    elif name == "openvino":
        import openvino  # noqa: F401
    gc.collect()
    before = resident("VmRSS")
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")
    torch.manual_seed(0)
    tokens = graph_models.tokens(256)
    model = None if path else graph_models.Lm().eval()
    run = RUNNERS[name](model, (tokens,), 1, path)
    for _ in range(3):
        run()
    return {"part": "memory", "runner": name, "peak_mb": round((resident("VmHWM") - before) / 1e6, 1)}


def subprocess_rows(arguments, environment=None):
    command = [sys.executable, __file__, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})}, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 and not rows:
        rows = [{"part": "error", "command": arguments, "error": done.stderr.strip().splitlines()[-1:]}]
    return rows


def all_memory(peers):
    import layerzero as lz

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model, tokens = graph_models.Lm().eval(), graph_models.tokens(256)
        saved, path = f"{folder}/model.lz", ""
        lz.compile(model, (tokens,)).save(saved)
        if {"onnxruntime", "openvino"} & set(peers):
            with contextlib.suppress(Exception):
                path = onnx_file(model, (tokens,), f"{folder}/model.onnx")
        paths = {"layerzero-file": saved, "onnxruntime": path, "openvino": path}
        for name in ("layerzero-file", "layerzero", *peers):
            if name == "inductor" or paths.get(name) == "":
                continue
            given = ["--path", paths[name]] if name in paths else []
            rows += subprocess_rows(["--memory-of", name, *given], {"LAYERZERO_THREADS": "1"})
    return rows


START = """
import time; begin = time.perf_counter()
import sys
import numpy as np
tokens = np.arange(64, dtype=np.int64)[None]
if {name!r} == "layerzero":
    import layerzero as lz
    model = lz.load({path!r})
    model(tokens)
elif {name!r} == "onnxruntime":
    import onnxruntime as ort
    ort.InferenceSession({path!r}).run(None, {{"i0": tokens}})
else:
    import openvino as ov
    ov.Core().compile_model({path!r}, "CPU")({{"i0": tokens}})
print(time.perf_counter() - begin)
"""


def start(peers):
    """Seconds from the start of the import to the first result of the LM's prefill of 64 tokens."""
    import layerzero as lz

    rows = []
    model, tokens = graph_models.Lm().eval(), graph_models.tokens(64)
    with tempfile.TemporaryDirectory() as folder:
        paths = {}
        if hasattr(lz, "load"):
            paths["layerzero"] = f"{folder}/model.lz"
            lz.compile(model, (tokens,)).save(paths["layerzero"])
        if {"onnxruntime", "openvino"} & set(peers):
            with contextlib.suppress(Exception):
                path = onnx_file(model, (tokens,), f"{folder}/model.onnx")
                paths.update({name: path for name in ("onnxruntime", "openvino") if name in peers})
        for name, path in paths.items():
            times = []
            for _ in range(3):
                program = START.format(name=name, path=path)
                done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    times.append(float(done.stdout.strip().splitlines()[-1]))
            rows.append({"part": "start", "runner": name, "seconds": round(min(times), 3) if times else None})
    return rows


def show(row, as_json):
    if as_json:
        print(json.dumps(row), flush=True)
        return
    if row["part"] == "speed" and "ms" in row:
        times = ", ".join(f"{name} {value:.3f}" for name, value in row["ms"].items())
        errors = "".join(f"; {name}: {error}" for name, error in row["errors"].items())
        ratio = f" {row['vs_best']:.2f}× {row['best_peer']}" if "vs_best" in row else ""
        print(f"{row['model']:18} {row['threads']} threads{ratio}  ms: {times}{errors}", flush=True)
    else:
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default=",".join(graph_models.CASES))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=4.0)
    # Internal: one process per model and number of threads, and one per runner for memory.
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--path", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    if options.memory_of:
        torch.set_num_threads(1)
        show(memory(options.memory_of, options.path), True)
        return
    if options.one:
        threads = int(options.threads)
        torch.set_num_threads(threads)
        show(speed(options.one, peers, threads, options.seconds, options.path), True)
        return
    parts = options.parts.split(",")
    if "speed" in parts:
        prefixes = tuple(options.models.split(","))
        for case in [name for name in graph_models.CASES if name.startswith(prefixes)]:
            # The Llama is measured on one thread only, as its target says.
            counts = [count for count in options.threads.split(",") if count == "1" or not case.startswith("llama")]
            # Both processes of a model use one ONNX file.
            with tempfile.TemporaryDirectory() as folder:
                for threads in counts:
                    given = ["--one", case, "--threads", threads, "--peers", options.peers]
                    given += ["--seconds", str(options.seconds), "--path", f"{folder}/model.onnx"]
                    limits = {"LAYERZERO_THREADS": threads, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
                    for row in subprocess_rows(given, limits):
                        show(row, options.json)
    if "lengths" in parts:
        show(lengths(), options.json)
    if "memory" in parts:
        for row in all_memory(peers):
            show(row, options.json)
    if "start" in parts:
        for row in start(peers):
            show(row, options.json)


if __name__ == "__main__":
    main()
