"""Plots of measurements, with matplotlib (``pip install 'layerzero[plot]'``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: More bars are not readable; the slowest calls are left out of the plot and named.
MAX_CALLS = 40


def measurements(rows: Sequence[dict[str, Any]], path: str) -> int:
    """Draws the median time of each kernel, by call, into a file of any format of matplotlib. Returns how many calls were left out."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("--plot needs matplotlib: pip install 'layerzero[plot]'") from None

    calls: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        if row["valid"]:
            name = f"{row['operation']}  {row['shape']}  {row['dtypes']}"
            calls.setdefault(name, []).append((row["kernel"], row["median_ns"] / 1e3))
    if not calls:
        raise ValueError("there are no measurements to plot; `lz tune` makes some")
    shown = sorted(calls.items(), key=lambda call: min(time for _, time in call[1]))[:MAX_CALLS]
    bars = []
    for name, kernels in shown:
        for number, (kernel, time) in enumerate(sorted(kernels, key=lambda one: one[1])):
            bars.append((kernel if number else f"{name}\n{kernel}", time, number == 0))
    figure = Figure(figsize=(9, 1 + 0.35 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    labels, times, fastest = zip(*reversed(bars), strict=True)
    axes.barh(range(len(bars)), times, color=["tab:green" if one else "tab:gray" for one in fastest])
    axes.set_yticks(range(len(bars)), labels, fontsize=7)
    axes.set_xscale("log")
    axes.set_xlabel("median time, µs")
    figure.savefig(path)
    return len(calls) - len(shown)
