"""Whether tensors are read correctly in many processes: each process determines the location of a torch flag
anew, from memory with different contents.

    python views.py --output FOLDER [--processes 64]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_ONE = """
import random, sys
import torch
import layerzero as lz

chance = random.Random(int(sys.argv[1]))
devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
# Memory that was used before, and released in random order.
used = [torch.randn(chance.randint(1, 200), chance.randint(1, 50)) for _ in range(chance.randint(0, 300))]
chance.shuffle(used)
del used[: len(used) // 2]

def is_refused(x):
    try:
        lz.ops.norm_rms(x)
        return False
    except lz.LayerZeroError:
        return True

wrong = []
for _ in range(20):
    for device in devices:
        x = torch.randn(chance.randint(1, 8), chance.randint(1, 64), device=device, dtype=chance.choice([torch.float32, torch.bfloat16]))
        z = torch.randn(3, 8, device=device, dtype=torch.complex64)
        wanting = torch.randn(3, 8, device=device, requires_grad=True)
        for name, tensor, refused in (
            ("plain", x, False), ("view", x.view(1, -1), False), ("transposed back", x.t().t(), False), ("detached", wanting.detach(), False),
            ("real part", z.real.contiguous(), False), ("negated", torch._neg_view(x), True), ("part of a conjugate", z.conj().imag, True),
            ("negated twice", torch._neg_view(torch._neg_view(x)), False), ("negated, resolved", torch._neg_view(x).resolve_neg(), False),
            ("conjugate", z.conj(), True), ("complex", z, True),
        ):
            if is_refused(tensor) != refused:
                wrong.append(f"{name} on {device}")
print(sorted(set(wrong)))
"""


def one(number):
    """What a process read incorrectly; empty if nothing."""
    done = subprocess.run([sys.executable, "-c", _ONE, str(number)], capture_output=True, text=True)
    return done.stdout.strip().removeprefix("[]") if done.returncode == 0 else f"ended with {done.returncode}: {done.stderr[-400:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=".")
    parser.add_argument("--processes", type=int, default=64)
    options = parser.parse_args()
    began = time.monotonic()
    with ThreadPoolExecutor(min(12, os.cpu_count() or 1)) as pool:
        results = list(pool.map(one, range(options.processes)))
    import torch

    found = {
        "torch": torch.__version__, "cuda": torch.cuda.is_available(), "date": time.strftime("%Y-%m-%d"), "processes": len(results),
        "wrong": [words for words in results if words], "took_s": round(time.monotonic() - began, 1),
    }  # fmt: skip
    Path(options.output, "views.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found)[:3000], flush=True)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
