"""Compares what tuning selects for the workloads of the schemas with what measures best afterwards.

Each call of a list (`bench-cpu --calls`, one per line) is tuned over every kernel that takes it, into a
separate PerfDB, and its kernel is selected. Then the selected kernel and those that tuning measured within
twice its time are measured again interleaved, each locked: the selection is right if it is at most 5 % slower
than the best of these. Close results get more rounds. With `--json`, one object per line; else rows of a
table.

The reference computes in f64, element by element, and the scalar kernels one lane at a time: both take
minutes where others take milliseconds. Above `REFERENCE_WORK` and `SCALAR_WORK` they are not candidates, and
the row says so; `--most-work` excludes the largest calls altogether, and `--op` all operations whose name
does not begin with one of these comma-separated prefixes.
"""

import json
import math
import os
import statistics
import sys
import tempfile
import time

import torch

# Measurements of earlier runs must not affect this one: the engine opens a separate database.
FOLDER = tempfile.TemporaryDirectory()
os.environ["LAYERZERO_CONFIG"] = f"{FOLDER.name}/layerzero.yaml"
with open(os.environ["LAYERZERO_CONFIG"], "w", encoding="utf-8") as config:
    config.write(f"version: 1\nperfdb:\n  path: {FOLDER.name}/perfdb.sqlite\n")

import layerzero as lz  # noqa: E402

DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "f8_e8m0": torch.float8_e8m0fnu,
    "f4_e2m1x2": torch.float4_e2m1fn_x2,
}

# Multiply-adds, or bytes moved, above which the reference and the scalar kernels are not candidates.
REFERENCE_WORK, SCALAR_WORK = 1e6, 2e7

# A kernel within this factor of the best, measured interleaved, counts as equally good.
AS_GOOD = 1.05

# Rounds of each kernel, and the duration of one; a run that takes longer than the last of these is not repeated three times.
ROUNDS, TURN, SLOW = 7, 0.02, 0.1

# If the ratio to the best is between these, the result is not clear yet, and as many rounds are added, repeatedly.
CLOSE, MORE = (1.02, 1.25), 3


def tensor(name, case):
    shape, dtype = case["shape"], DTYPES[case["dtype"]]
    if "values" in case:
        return torch.tensor(case["values"], dtype=dtype).view(shape)
    count = math.prod(shape)
    if not dtype.is_floating_point or dtype.itemsize == 1:
        drawn = torch.randint(0, 100, (min(count, 1 << 20),), dtype=torch.uint8)
        return drawn.repeat(-(-count // max(len(drawn), 1)))[:count].clone().view(dtype).view(shape)
    drawn = torch.randn(min(count, 1 << 20))
    if "scale" in name or "prob" in name:
        drawn = drawn.abs() + 0.01
    return drawn.to(dtype).repeat(-(-count // max(len(drawn), 1)))[:count].clone().view(shape)


def timed(run, seconds):
    """The 10th percentile of the times."""
    times, begin = [], time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds or (len(times) < 3 and spent < SLOW):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return sorted(times)[len(times) // 10]


def again(operation, arguments, chosen, kernels):
    """Each kernel locked, interleaved: the median of its rounds."""
    function = getattr(lz.ops, operation.replace(".", "_"))
    times_by_kernel = {kernel: [] for kernel in kernels}
    medians = {}
    begin = time.perf_counter()
    for number in range(MORE * ROUNDS):
        if number >= 3 and time.perf_counter() - begin > ROUNDS * SLOW * len(times_by_kernel):
            break
        if number >= ROUNDS and not CLOSE[0] < medians[chosen] / min(medians.values()) < CLOSE[1]:
            break
        for kernel, times in times_by_kernel.items():
            lz.lock(operation, kernel)
            try:
                function(**arguments)
                times.append(timed(lambda: function(**arguments), TURN))
            finally:
                lz.unlock(operation)
        medians = {kernel: statistics.median(times) for kernel, times in times_by_kernel.items()}
    return medians


def work(case):
    """Multiply-adds, or bytes moved, whichever is larger."""
    return max(case["flops"], case["bytes"])


def one(case, samples):
    operation = case["operation"]
    arguments = {name: tensor(name, value) for name, value in case["tensors"].items()} | case["params"]
    limits = {"reference.*": REFERENCE_WORK, "cpu.*.scalar": SCALAR_WORK}
    left_out = [kernels for kernels, most in limits.items() if work(case) > most]
    lz.configure(deny=left_out)
    data = lz.tune(operation, samples=samples, progress=False, **arguments).to_dict()
    measured = {row["kernel"]: row["median_ns"] for row in data["kernels"] if row["state"] == "measured"}
    chosen = lz.which(operation, **arguments).kernel_id
    near = [kernel for kernel, time in measured.items() if time <= 2 * measured.get(chosen, math.inf)]
    times = again(operation, arguments, chosen, sorted({chosen, *near}))
    best = min(times, key=times.get)
    return {
        "bench": "tuned",
        "case": f"{operation} {case['workload']}",
        "unit": "ns",
        "candidates": len(measured),
        "left_out": left_out,
        "chosen": chosen,
        "ours": times[chosen],
        "best": best,
        "theirs": times[best],
        "speedup": times[best] / times[chosen],
        "right": times[chosen] <= AS_GOOD * times[best],
    }


def main(path, flags):
    """Yields rows as they are measured, and the summary."""
    as_json, samples = "--json" in flags, 10
    given = dict(zip(flags, flags[1:]))
    most_work, operations = float(given.get("--most-work", math.inf)), tuple(given.get("--op", "").split(","))
    rows, too_large = [], 0
    with open(path, encoding="utf-8") as file, torch.no_grad():
        for line in file:
            case = json.loads(line)
            if not case["operation"].startswith(operations):
                continue
            if work(case) > most_work:
                too_large += 1
                continue
            try:
                row = one(case, samples)
            except lz.LayerZeroError as error:
                print(f"{case['operation']} {case['workload']}: {error}", file=sys.stderr)
                continue
            rows.append(row)
            if as_json:
                print(json.dumps(row), flush=True)
            else:
                verdict = "yes" if row["right"] else f"no, {1 / row['speedup']:.2f}× the time of `{row['best']}`"
                print(f"| {row['case']} | `{row['chosen']}` | {row['ours'] / 1e3:.1f} µs | {verdict} |", flush=True)
    right = sum(row["right"] for row in rows)
    misses = [row["speedup"] for row in rows if not row["right"]]
    print(
        f"selected correctly: {right} of {len(rows)}, the worst of the rest at {min(misses, default=1):.2f} of the best; "
        f"{too_large} skipped because of their size",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
