"""Runs everything of a bundle (`cargo xtask gpu-bundle`) on a machine with a GPU and without a network.

Wheels are installed into a folder of their own with ``pip install --no-index --no-deps --target``; nothing on the machine changes.
What comes out is JSON, in ``--output``: what each kernel was held to, what each shape took. A part that fails or takes too long
leaves what it found, and the next one runs.

    python run_gpu.py --output out [--parts conform bench ...] [--seconds 600]
    python run_gpu.py --output out --parts short --seconds 115
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BEGAN = time.monotonic()

#: FlashInfer's modules by the names that `layerzero.backends.flashinfer._compile` gives them, in the order of their worth.
PLAIN = [False, False]
MODULES = [
    [
        ["norm"], ["rope"], ["cascade"], ["mla", "fa2", "bfloat16", 512, 64], ["mla", "fa3", "bfloat16", 512, 64],
        ["decode", "bfloat16", 128, 128, *PLAIN], ["prefill", "fa3", "bfloat16", 128, 128, *PLAIN],
        ["prefill", "fa2", "bfloat16", 128, 128, *PLAIN], ["single", "fa3", "bfloat16", 128, 128, *PLAIN],
        ["single", "fa2", "bfloat16", 128, 128, *PLAIN], ["sampling"],
    ],
    [
        ["decode", "bfloat16", 64, 64, *PLAIN], ["decode", "bfloat16", 256, 256, *PLAIN],
        ["single", "fa3", "bfloat16", 64, 64, *PLAIN], ["single", "fa2", "bfloat16", 64, 64, *PLAIN],
        ["prefill", "fa2", "bfloat16", 64, 64, *PLAIN], ["single", "fa2", "bfloat16", 256, 256, *PLAIN],
        ["decode", "float16", 128, 128, *PLAIN], ["decode", "bfloat16", 128, 128, True, False],
        ["single", "fa2", "float16", 128, 128, *PLAIN], ["single", "fa2", "bfloat16", 128, 128, True, False],
    ],
    [
        ["single", "fa3", "bfloat16", 256, 256, *PLAIN], ["prefill", "fa2", "bfloat16", 256, 256, *PLAIN],
        ["prefill", "fa3", "bfloat16", 64, 64, *PLAIN], ["single", "fa3", "float16", 128, 128, *PLAIN],
        ["prefill", "fa2", "float16", 128, 128, *PLAIN], ["prefill", "fa2", "bfloat16", 128, 128, False, True],
    ],
]  # fmt: skip

#: Those that two minutes are enough for, with everything else that runs then.
SHORT = [["norm"], ["decode", "bfloat16", 128, 128, *PLAIN], ["single", "fa2", "bfloat16", 128, 128, *PLAIN], ["single", "fa3", "bfloat16", 128, 128, *PLAIN]]

_GROUP = """
import json, os, sys
from flashinfer.jit.core import build_jit_specs
from layerzero.backends.flashinfer._build import spec_of
specs = [spec for spec in (spec_of(json.dumps(one)) for one in json.loads(sys.argv[1])) if not spec.is_aot]
build_jit_specs(specs)
for spec in specs:
    spec.aot_path.parent.mkdir(parents=True, exist_ok=True)
    beside = spec.aot_path.with_suffix(".part")
    beside.write_bytes(spec.jit_library_path.read_bytes())
    beside.replace(spec.aot_path)
    print(spec.name, flush=True)
"""


def say(*words):
    print(f"[{time.monotonic() - BEGAN:6.1f}]", *words, flush=True)


def install(site):
    wheels = sorted(glob.glob(str(HERE / "wheels" / "*.whl")))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade", "--target", str(site), *wheels]
    subprocess.run(command, check=True)
    compiled = site / "flashinfer" / "data" / "aot"
    for archive in sorted(HERE.glob("aot*.tar.gz")):
        with tarfile.open(archive) as tar:
            tar.extractall(compiled, filter="data")
    say("installed", len(wheels), "wheels,", len(list(compiled.glob("*/*.so"))), "compiled modules")


def pack(site, output):
    """What was compiled, as archives that the next bundle can bring."""
    compiled = site / "flashinfer" / "data" / "aot"
    parts, size = [[]], 0
    for library in sorted(compiled.glob("*/*.so")):
        # They shrink to a quarter or so; archives stay small enough for those who must copy them one by one.
        if size + library.stat().st_size > 40 << 20:
            parts.append([])
            size = 0
        parts[-1].append(library)
        size += library.stat().st_size
    for number, part in enumerate(parts):
        with tarfile.open(Path(output) / f"aot{number}.tar.gz", "w:gz", compresslevel=5) as tar:
            for library in part:
                tar.add(library, arcname=str(library.relative_to(compiled)))
    say("packed", sum(map(len, parts)), "compiled modules")


def compile_groups(site, environment, groups, jobs, output, after):
    for number in groups:
        begin = time.monotonic()
        wanted = json.dumps(MODULES[number])
        done = subprocess.run(
            [sys.executable, "-c", _GROUP, wanted], env={**environment, "MAX_JOBS": str(jobs)}, capture_output=True, text=True
        )
        say(f"compiled group {number}: {len(done.stdout.split())} modules in {time.monotonic() - begin:.0f} s", done.stderr[-1500:] if done.returncode else "")
        if output:
            pack(site, output)
        after[number].set()


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
    parser.add_argument("--parts", nargs="*", default=["compile", "conform", "scenarios", "bench"])
    parser.add_argument("--groups", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=1e6)
    parser.add_argument("--seeds", default="12")
    parser.add_argument("--backends", nargs="*", default=["torch", "triton", "liger", "flashinfer"], help="for conform")
    parser.add_argument("--only", nargs="*", default=[], help="for scenarios and short")
    options = parser.parse_args()
    site, output = Path(options.site), Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    install(site)
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONUNBUFFERED": "1", "XDG_CACHE_HOME": "/tmp/layerzero-gpu-cache"}

    def left():
        return options.seconds - (time.monotonic() - BEGAN)

    after = {number: threading.Event() for number in range(len(MODULES))}
    if "compile" in options.parts:
        first, rest = options.groups[:1], options.groups[1:]

        def work():
            compile_groups(site, environment, first, 18, output, after)
            compile_groups(site, environment, rest, 13, output, after)

        threading.Thread(target=work, daemon=True).start()
    python, tests = [sys.executable], HERE / "cuda"
    codes = []
    if "short" in options.parts:
        # Each by itself, so that one that is not ready in time does not keep the others from being used.
        few = {**environment, "MAX_JOBS": "3"}
        compiling = [subprocess.Popen([*python, "-c", _GROUP, json.dumps([one])], env=few, stderr=subprocess.DEVNULL) for one in SHORT]
        command = [*python, str(tests / "short.py"), "--output", str(output), "--seconds", str(left() - 4)]
        codes.append(part("short", [*command, *(["--only", *options.only] if options.only else [])], environment, left()))
        for process in compiling:
            process.kill()
    if "conform" in options.parts:
        run = [*python, str(tests / "conform.py"), "--output", str(output), "--seeds", options.seeds, "--workers", "12"]
        if "compile" in options.parts:
            after[options.groups[0]].wait(max(left() - 60, 1))
        codes.append(part("conform", [*run, "--backends", *options.backends, "--seconds", str(left() - 30)], environment, left()))
    if "scenarios" in options.parts:
        codes.append(part("scenarios", [*python, str(tests / "scenarios.py"), "--output", str(output), *(["--only", *options.only] if options.only else [])], environment, left()))
    if "bench" in options.parts:
        code = "import sys; from layerzero.cli import main; sys.exit(main(sys.argv[1:]))"
        # What is not compiled by now would take the time of everything else.
        frozen = {**environment, "FLASHINFER_DISABLE_JIT": "1"}
        codes.append(part("bench", [*python, "-c", code, "bench", "gpu", "--output", str(output / "bench.json"), "--limit", str(left() - 20)], frozen, left()))
    if "compile" in options.parts:
        while left() > 40 and not after[options.groups[-1]].is_set():
            time.sleep(1)
        pack(site, output)
    say("done", codes)
    # Compilations that are left are not waited for.
    sys.stdout.flush()
    os._exit(0 if not any(codes) else 1)


if __name__ == "__main__":
    main()
