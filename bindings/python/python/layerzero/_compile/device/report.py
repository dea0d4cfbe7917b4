"""Programs on a device as data and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerzero._compile.device.program import Step
    from layerzero._compile.device.session import DeviceGraph, Prepared


def as_data(graph: DeviceGraph, prepared: Prepared) -> dict[str, Any]:
    """Steps with their kernels, memory, and whether the program is a CUDA graph."""
    plan = prepared.program.plan
    steps = [
        {
            "operation": step.operation,
            "kernel": step.kernel,
            "node": step.about["line"],
            "copy": step.about["copy"],
            "source": step.about["source"],
            "fallback": step.fallback,
            "graph_safe": step.is_graph_safe,
        }
        for step in prepared.program.steps
    ]
    return {
        "device": str(graph.device),
        "steps": steps,
        "arena_bytes": plan["arena_bytes"],
        "live_bytes": plan["live_bytes"],
        "constant_bytes": sum(constant.nbytes for constant in graph.constants),
        "computed_constants": prepared.program.constant_steps,
        "captured": prepared.graph is not None,
        "not_captured": _not_captured(prepared),
    }


def _not_captured(prepared: Prepared) -> str | None:
    from layerzero._compile.device.capture import refusal

    if prepared.graph is not None:
        return None
    return prepared.not_captured or refusal(prepared.program) or "it is captured when it runs for the second time"


def as_text(graph: DeviceGraph, prepared: Prepared) -> str:
    """One line per stage, rewrite and finding, then one per step."""
    data = as_data(graph, prepared)
    lines = [f"stage {name}: {seconds * 1e3:.1f} ms" for name, seconds in graph.native.stages]
    lines.append(
        f"device {graph.device}: {len(data['steps'])} steps, {data['computed_constants']} of them only once; arena {data['arena_bytes']} bytes "
        f"(at least {data['live_bytes']} are live at once), constants {data['constant_bytes']} bytes"
    )
    if graph.device.type == "cuda":
        lines.append("captured as a CUDA graph" if data["captured"] else f"not captured as a CUDA graph: {data['not_captured']}")
    lines += [f"not compiled: {problem}" for problem in prepared.program.plan["not_compiled"]]
    lines += [f"pass {rewrite}" for rewrite in graph.native.rewrites]
    lines += [f"{severity} ({phase}, {validator}): {message}" for phase, severity, validator, message in graph.native.findings]
    lines += [_line(step) for step in prepared.program.steps]
    return "\n".join(lines)


def _line(step: Step) -> str:
    about = step.about
    why = step.fallback or about.get("why") or "torch's own function"
    copy = f" (copy: {about['copy']})" if about["copy"] else ""
    safe = "" if step.is_graph_safe else "; not safe for capture"
    return f"{about['line']}  ▸ {step.kernel}{copy}  {why}{safe}  from {about['source']}"
