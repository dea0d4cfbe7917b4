"""Runs everything in a bundle (`cargo xtask gpu-bundle`) on a machine with a GPU and without a network.

Wheels are installed into a separate folder with ``pip install --no-index --no-deps --target``; nothing else
on the machine changes. Results are written as JSON to ``--output``: conformance of each kernel, latency of
each shape. A part that fails or times out keeps its results, and the next one runs.

    python run_gpu.py --output out [--parts conform bench ...] [--seconds 600]

Parts run in the given order. `compile` starts compiling FlashInfer's modules, `ready` waits for it: parts
that measure should come after it.
"""

import argparse
import glob
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGAN = time.monotonic()

#: FlashInfer's modules by the names of `layerzero.backends.flashinfer._compile`, the slowest to compile first.
PLAIN = [False, False]
MODULES = [
    ["prefill", "fa3", "bfloat16", 128, 128, *PLAIN], ["prefill", "fa3", "bfloat16", 64, 64, *PLAIN],
    ["single", "fa3", "float16", 128, 128, *PLAIN], ["single", "fa3", "bfloat16", 128, 128, *PLAIN],
    ["mla", "fa3", "bfloat16", 512, 64], ["prefill", "fa2", "bfloat16", 128, 128, *PLAIN], ["mla", "fa2", "bfloat16", 512, 64],
    ["single", "fa3", "bfloat16", 64, 64, *PLAIN], ["single", "fa3", "bfloat16", 256, 256, *PLAIN], ["sampling"],
    ["decode", "bfloat16", 128, 128, *PLAIN], ["norm"], ["rope"], ["cascade"], ["single", "fa2", "bfloat16", 128, 128, *PLAIN],
    ["prefill", "fa2", "bfloat16", 64, 64, *PLAIN], ["prefill", "fa2", "bfloat16", 256, 256, *PLAIN],
    ["decode", "bfloat16", 64, 64, *PLAIN], ["decode", "bfloat16", 256, 256, *PLAIN],
    ["single", "fa2", "bfloat16", 64, 64, *PLAIN], ["single", "fa2", "bfloat16", 256, 256, *PLAIN],
    ["decode", "bfloat16", 128, 128, True, False],
    ["single", "fa2", "bfloat16", 128, 128, True, False], ["decode", "float16", 128, 128, *PLAIN],
    ["single", "fa2", "float16", 128, 128, *PLAIN], ["prefill", "fa2", "float16", 128, 128, *PLAIN], ["prefill", "fa2", "bfloat16", 128, 128, False, True],
]  # fmt: skip

_ONE = """
import sys
from layerzero.backends.flashinfer._build import spec_of
spec = spec_of(sys.argv[1])
if not spec.is_aot:
    spec.build(verbose=False)
    spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = spec.aot_path.with_suffix(".part")
    temporary.write_bytes(spec.jit_library_path.read_bytes())
    temporary.replace(spec.aot_path)
"""


def say(*words):
    print(f"[{time.monotonic() - BEGAN:6.1f}]", *words, flush=True)


def install(site):
    wheels = sorted(glob.glob(str(HERE / "wheels" / "*.whl")))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", str(site), *wheels]
    subprocess.run(command, check=True)
    compiled = site / "flashinfer" / "data" / "aot"
    for archive in sorted(HERE.glob("aot*.tar.*")):
        with tarfile.open(archive) as tar:
            tar.extractall(compiled, filter="data")
    say("installed", len(wheels), "wheels,", len(list(compiled.glob("*/*.so"))), "compiled modules")


def pack(site, output):
    """Compiled modules, as archives that the next bundle can include."""
    compiled = site / "flashinfer" / "data" / "aot"
    parts, size = [[]], 0
    for library in sorted(compiled.glob("*/*.so")):
        # They shrink to about a quarter; archives stay small enough to be copied one by one.
        if size + library.stat().st_size > 40 << 20:
            parts.append([])
            size = 0
        parts[-1].append(library)
        size += library.stat().st_size

    def write(number):
        with tarfile.open(Path(output) / f"aot{number}.tar.gz", "w:gz", compresslevel=5) as tar:
            for library in parts[number]:
                tar.add(library, arcname=str(library.relative_to(compiled)))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(len(parts))))
    say("packed", sum(map(len, parts)), "compiled modules")


class Compiling:
    """Compiles FlashInfer's modules, several at a time and each separately: those that are ready when time is up can be used."""

    def __init__(self, environment, modules, workers, jobs):
        self.environment = {**environment, "MAX_JOBS": str(jobs)}
        self.waiting, self.running, self.failed, self.lock = list(modules), set(), {}, threading.Lock()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(workers)]
        for thread in self.threads:
            thread.start()

    def work(self):
        while True:
            with self.lock:
                if not self.waiting:
                    return
                wanted = json.dumps(self.waiting.pop(0))
            begin = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-c", _ONE, wanted], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, start_new_session=True,
            )  # fmt: skip
            with self.lock:
                self.running.add(process)
            words = process.communicate()[0]
            with self.lock:
                self.running.discard(process)
            if process.returncode:
                self.failed[wanted] = words[-1500:]
            say(f"{wanted}: {time.monotonic() - begin:.0f} s", words[-1500:] if process.returncode else "")

    def wait(self, seconds):
        """Whether all of them were tried by then."""
        end = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self.threads)

    def stop(self):
        """Terminates the remaining compilations."""
        with self.lock:
            self.waiting.clear()
            for process in self.running:
                # Including the compilers that it started.
                os.killpg(process.pid, signal.SIGKILL)


def part(name, command, environment, seconds):
    say("part", name)
    try:
        done = subprocess.run(command, env=environment, timeout=max(seconds, 5))
        say("part", name, "ended with", done.returncode)
        return done.returncode
    except subprocess.TimeoutExpired:
        say("part", name, "took longer than", round(seconds), "s")
        return 124


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="out")
    parser.add_argument("--site", default="/tmp/layerzero-gpu-site")
    parser.add_argument("--parts", nargs="*", default=["compile", "short", "ready", "conform", "promises", "references", "scenarios", "isolation", "verification", "views", "bench", "step"])
    parser.add_argument("--reserve", type=float, default=300, help="seconds reserved for other parts than compiling")
    parser.add_argument("--modules", type=int, help="number of FlashInfer modules to compile")
    parser.add_argument("--compilers", type=int, default=8, help="modules that are compiled at a time")
    parser.add_argument("--jobs", type=int, default=3, help="compiler jobs per module")
    parser.add_argument("--conform-seconds", type=float, default=1e6)
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--seeds", default="12")
    parser.add_argument("--backends", nargs="*", default=["torch", "torch_reference", "triton", "liger", "flashinfer"], help="backends of the part conform")
    parser.add_argument("--only", nargs="*", default=[], help="names for the parts scenarios, short and step")
    options = parser.parse_args()
    site, output = Path(options.site), Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    install(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": "/tmp/layerzero-gpu-cache"}

    def left():
        return options.seconds - (time.monotonic() - BEGAN)

    python, tests = [sys.executable], HERE / "cuda"
    only = ["--only", *options.only] if options.only else []
    compiling, codes = None, []
    # Compiling the rest would take the time of the other parts.
    frozen = {**environment, "FLASHINFER_DISABLE_JIT": "1"}
    for name in options.parts:
        if name == "compile":
            compiling = Compiling(environment, MODULES[: options.modules], options.compilers, options.jobs)
        elif name == "ready" and compiling is not None:
            compiling.wait(left() - options.reserve)
            compiling.stop()
            pack(site, output)
        elif name == "conform":
            command = [*python, str(tests / "conform.py"), "--output", str(output), "--seeds", options.seeds, "--workers", "12"]
            command += ["--backends", *options.backends, "--seconds", str(min(left() - 30, options.conform_seconds))]
            codes.append(part(name, command, environment, left()))
        elif name == "bench":
            code = "import sys; from layerzero.cli import main; sys.exit(main(sys.argv[1:]))"
            command = [*python, "-c", code, "bench", "gpu", "--output", str(output / "bench.json"), "--limit", str(left() - 20)]
            codes.append(part(name, command, frozen, left()))
        elif name == "short":
            command = [*python, str(tests / "short.py"), "--output", str(output), "--seconds", str(left() - 4), *only]
            codes.append(part(name, command, frozen, left()))
        elif name == "step":
            codes.append(part(name, [*python, str(tests / "stacks.py"), "--output", str(output), *only], environment, left()))
        elif name == "references":
            codes.append(part(name, [*python, str(tests / "references.py")], environment, left()))
        elif name == "promises":
            codes.append(part(name, [*python, str(tests / "promises.py"), "--output", str(output)], environment, left()))
        elif name in ("isolation", "verification"):
            codes.append(part(name, [*python, str(tests / f"{name}.py"), "--output", str(output)], environment, left()))
        elif name == "views":
            codes.append(part(name, [*python, str(tests / "views.py"), "--output", str(output)], environment, left()))
        elif name == "scenarios":
            codes.append(part(name, [*python, str(tests / "scenarios.py"), "--output", str(output), *only], frozen, left()))
    say("done", codes)
    sys.stdout.flush()
    os._exit(0 if not any(codes) else 1)


if __name__ == "__main__":
    main()
