"""Inspection: operations, kernels, selection and its reasons, and health. Nothing here runs a kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

from layerzero import _native
from layerzero._isolation import device_worker_of
from layerzero._report import Report, table

__all__ = [
    "Explanation",
    "Plan",
    "Report",
    "doctor",
    "explain",
    "list_circuits",
    "list_kernels",
    "list_operations",
    "readiness_check",
    "reset_kernel",
    "statistics",
    "validate",
    "which",
]


class Plan(NamedTuple):
    """The kernel selected for a call."""

    kernel_id: str
    score: float
    workspace_bytes: int
    fallbacks: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a plain dictionary."""
        return {**self._asdict(), "fallbacks": list(self.fallbacks)}


def which(operation: str, /, *args: Any, device: str | None = None, **keywords: Any) -> Plan:
    """The kernel selected for a call of `operation`, or of an alias, with these arguments, and its fallbacks.

    `device` answers for another device: see `explain`.
    """
    found = _native.which(operation, device, other_backends(device), *args, **keywords)
    return Plan(found["kernel_id"], found["score"], found["workspace_bytes"], tuple(found["fallbacks"]))


def statistics(operation: str, /, *args: Any, **keywords: Any) -> dict[str, int]:
    """The statistics of the values of these arguments, as keywords for a call of `operation`.

    Some kernels depend on values: the experts of a mixture on the load of the busiest one, ragged attention on the
    longest request. An operation declares such statistics as parameters; passing one lets selection, measurements and
    rules distinguish calls by it, and changes no result. The arguments are those of a call; only the ones that a statistic
    describes are read, and they must be in host memory::

        lz.ops.moe_experts(x, indices, weights, up, down, **lz.statistics("moe.experts", indices=indices.cpu()))
    """
    return _native.statistics(operation, *args, **keywords)


class Explanation(Report):
    """Every candidate for a call with its score or its rejection reasons."""


def explain(operation: str, /, *args: Any, device: str | None = None, **keywords: Any) -> Explanation:
    """Why a kernel is selected for a call: every candidate with its score, or with all its rejection reasons.

    `operation` is an operation or an alias. `device` explains the call as if its tensors were on another device: one
    of this machine (``"cuda:0"``) or a simulated one (``"h100"``, ``"b200"``, …). Kernels of libraries that are not
    installed are listed with the reason ``NOT_INSTALLED`` and the command that installs them.
    """
    native = _native.explain(operation, device, other_backends(device), *args, **keywords)
    data: dict[str, Any] = native.to_dict()
    plan = data.get("plan") or {}
    rows = []
    for candidate in data["candidates"]:
        candidate["runs_in"] = candidate["runs_in"] or device_worker_of(candidate["kernel"])
        rows.append((candidate["kernel"], candidate["chosen"], candidate["total"], "; ".join(_why(candidate)) or None))
    known = [f"{one['name']}={one['value']}" for one in data["call"] if one["kind"] == "statistic" and one["value"] != "-1"]
    call = f"{operation} with {', '.join(known)}" if known else operation
    title = f"{call}: {plan.get('kernel') or 'no kernel can run this call'}"
    return Explanation((table(title, ("kernel", "chosen", "score", "why"), rows),), data)


def _why(candidate: dict[str, Any]) -> list[str]:
    """Why a candidate is rejected, or what its score consists of."""
    found = [f"{reason['code']}: {reason['sentence']}" for reason in candidate["reasons"]]
    score = candidate["score"]
    if not found and score:
        found.append(f"priority {score['priority']:g}")
        found += [f"{line['what']} ({line['source']}): {line['points']:+g}" for line in candidate["policy"]]
        evidence = candidate["evidence"]
        if evidence:
            measured = f"measured {evidence['median_ns'] / 1e3:.4g} µs, median of {evidence['samples']} sample{'' if evidence['samples'] == 1 else 's'}"
            found.append(f"{measured}: {score['perf']:+.4g}")
        copies = "contiguous" in candidate["transforms"]
        conversions = "conversions, strided tensors are copied first" if copies else "conversions"
        terms = (("jit", "not compiled yet"), ("reliability", "recent failures"), ("transform", conversions), ("fusion", "fusion"))
        found += [f"{about}: {score[term]:+.4g}" for term, about in terms if score[term]]
    if candidate["runs_in"]:
        found.append(f"runs in {candidate['runs_in']}")
    if candidate["last_failure"]:
        found.append(f"last failure: {candidate['last_failure']}")
    return found


def list_operations() -> list[str]:
    """Names of all operations, including registered ones."""
    return _native.list_operations()


def list_kernels(
    operation: str | None = None, *, backend: str | None = None, device: str | None = None
) -> list[dict[str, Any]]:
    """Every kernel as a dictionary; only those of one operation, alias or backend if given.

    `device` lists the kernels for another device, as in `explain`, including those of libraries that are not
    installed; for them `disabled` is the reason.
    """
    found = _native.kernels(operation, backend, device, other_backends(device) if device else [])
    for kernel in found:
        kernel["runs_in"] = kernel["runs_in"] or device_worker_of(kernel["id"])
    return found


def other_backends(device: str | None) -> list[dict[str, Any]]:
    """Descriptors of backends that are not loaded: of all for another device, otherwise of those that are not installed."""
    from layerzero import backends

    return backends.described(installed=device is not None)


def validate(operation: str, /, *args: Any, **keywords: Any) -> list[_native.Reason]:
    """All reasons why a call would fail, without making it; an empty list if it would not."""
    try:
        _native.which(operation, None, [], *args, **keywords)
    except _native.LayerZeroError as error:
        return list(error.reasons)
    return []


# Packages that backends use, and their purpose. Looked up by name; nothing is imported.
_PACKAGES = (
    ("torch", "tensors, SDPA and norms"),
    ("numpy", "arrays"),
    ("ml_dtypes", "bfloat16 and float8 arrays"),
    ("flashinfer-python", "attention, sampling and norms on NVIDIA GPUs"),
    ("flash-attn", "attention on NVIDIA GPUs"),
    ("xformers", "attention on GPUs"),
    ("liger-kernel", "Triton kernels"),
    ("tokenizers", "tokenization"),
    ("tiktoken", "tokenization"),
    ("sentencepiece", "tokenization"),
    ("kernels", "kernels of the Hugging Face Hub"),
)


def doctor(*, probe: bool = False) -> Report:
    """A report of devices, backends, libraries and settings of this machine and process, and how to fix problems.

    Backends that were not probed yet are probed, each in a separate process; with `probe` all of them are probed again.
    """
    import json
    import platform
    from importlib import metadata

    from layerzero import backends as hosted
    from layerzero.backends._libraries import libraries
    from layerzero.backends._verified import verification

    found = {one.name: one for one in hosted.load(probe_again=probe)}
    state = json.loads(_native.state())
    backends = _native.backends()
    for one in found.values():
        if one.state in ("absent", "waiting"):
            reason = f"{one.reason}: {one.fix}" if one.fix else one.reason
            backends.append(
                {"name": one.name, "version": one.version, "kernels": 0, "available": None, "reason": reason}
            )
    for backend in backends:
        known = found.get(backend["name"])
        backend["verified"] = list(known.verified) if known else None
        backend["fix"] = known.fix if known else None
        if known and known.state == "ok":
            platforms = {kernel["platform"] for kernel in _native.kernels(backend=known.name)} - set(known.verified)
            if platforms:
                why = verification(known.name).reason if "cuda" in platforms else "no recorded run of its adapters"
                backend["reason"] = f"unverified on {', '.join(sorted(platforms))}: {why}"
    packages: list[dict[str, str | None]] = []
    for name, purpose in _PACKAGES:
        try:
            packages.append({"name": name, "version": metadata.version(name), "purpose": purpose})
        except metadata.PackageNotFoundError:
            packages.append({"name": name, "version": None, "purpose": purpose})
    variables = {name: value for name, value in sorted(os.environ.items()) if name.startswith("LAYERZERO_")}
    data = {
        "layerzero": _native.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **state,
        "backends": backends,
        "packages": packages,
        "compatibility": hosted.matrix(),
        "libraries": libraries(),
        "environment": variables,
    }
    tables = [
        table(
            "layerzero",
            ("what", "value"),
            [
                ("version", data["layerzero"]),
                ("python", data["python"]),
                ("platform", data["platform"]),
                ("health", state["health"]["level"]),
                ("kernels", sum(backend["kernels"] for backend in backends)),
                *(("problem", problem) for problem in state["problems"]),
                *variables.items(),
            ],
        ),
        table(
            "devices",
            ("device", "state", "detail"),
            [
                *((device["name"], "ok", device["uuid"][:16]) for device in state["devices"]),
                *((absent.split(":")[0], "–", absent.partition(":")[2].strip()) for absent in state["absent"]),
            ],
        ),
        table(
            "backends",
            ("backend", "state", "version", "kernels", "reason and fix"),
            [
                (
                    backend["name"],
                    {True: "ok", False: "problem", None: "–"}[backend["available"]],
                    backend["version"] or None,
                    backend["kernels"],
                    backend["reason"],
                )
                for backend in backends
            ],
        ),
        table(
            "compatibility",
            ("backend", "version", "written for", "CUDA", "state", "conflict"),
            [
                (
                    row["backend"],
                    row["version"],
                    row["written_for"],
                    ", ".join(map(str, row["cuda"])) or None,
                    row["state"],
                    row["conflict"],
                )
                for row in data["compatibility"]
                if row["version"] is not None
            ],
        ),
        table(
            "libraries used through torch",
            ("library", "version", "state", "purpose"),
            [(one["name"], one["version"], one["state"], one["what"]) for one in data["libraries"]],
        ),
        table(
            "packages",
            ("package", "version", "for"),
            [(package["name"], package["version"], package["purpose"]) for package in packages],
        ),
    ]
    return Report(tuple(tables), data)


def list_circuits() -> list[dict[str, Any]]:
    """Circuit breakers with recorded failures: those of this process, then those that are only stored.

    Each has its `scope` (kernel, backend or device), `name`, `version`, `state` (closed, open, half_open),
    whether it `refuses` calls now and for how many more `retry_seconds`, its `failures`, and the
    `last_error`.
    """
    return _native.circuits()


def reset_kernel(name: str | None = None) -> int:
    """Resets the circuit breakers of a kernel or backend, or all of them, in this process and in the database.

    Returns how many were reset. Other running processes that use the database reset theirs within about a second.
    """
    return _native.reset_kernel(name)


#: Libraries whose tensors can be on a device other than the host.
_DEVICE_LIBRARIES = ("torch", "cupy", "jax")


def _platforms_in_use(state: dict[str, Any]) -> list[str]:
    """The host, and every platform of this machine whose tensors the program can have, because it imported a library for it."""
    found = {next(iter(device["detail"])) for device in state["devices"]} - {"cpu"}
    return ["cpu", *(sorted(found) if any(name in sys.modules for name in _DEVICE_LIBRARIES) else ())]


def _agreeing(check: tuple[str, bool, str]) -> tuple[str, bool, str]:
    """The check of versions, with the version of the installed package."""
    from importlib import metadata

    name, good, detail = check
    try:
        installed = metadata.version("layerzero")
    except metadata.PackageNotFoundError:
        return check
    if installed == _native.__version__:
        return check
    problem = f"the package has version {installed}, its native library {_native.__version__}"
    return name, False, problem if good else f"{detail}; {problem}"


def readiness_check(platforms: Iterable[str] | None = None) -> Report:
    """Whether calls can be served. Each check passes or says what is wrong.

    ``kernels``: every operation has a kernel on every platform in use. ``health``, ``backends``, ``circuits``: the engine is not
    degraded, no backend is disabled, no circuit is open. ``dispatch_table``: no loaded table is stale. ``compilation``: no kernel
    waits for its compilation, none failed to compile, and the shape manifest is valid. ``handles``: no
    verification of a tokenizer is running. ``capture``: with ``graph_strict_mode``, kernels have passed a trial capture. ``memory``: at least ``memory_headroom_mb`` is free, where memory is probed. ``perfdb``:
    the database can be read. ``telemetry``: no log record was dropped. ``versions``: the kernels of a backend have one version,
    and the package and its native library agree.

    Platforms in use are the host and those of this machine's other devices once a library is imported whose
    tensors can be on them; `platforms` (`cpu`, `cuda`, …) checks others instead. Text operations count for
    the host only.
    """
    import json

    state = json.loads(_native.state())
    checked = _platforms_in_use(state) if platforms is None else list(platforms)
    checks = [_agreeing(check) if check[0] == "versions" else check for check in _native.readiness(checked)]
    if state["problems"]:
        checks.append(("environment", False, "; ".join(state["problems"])))
    ready = all(good for _, good, _ in checks)
    data = {
        "ready": ready,
        "platforms": checked,
        "checks": [{"name": name, "ok": good, "detail": detail} for name, good, detail in checks],
    }
    rows = [(name, "ok" if good else "problem", detail) for name, good, detail in checks]
    title = "ready" if ready else "not ready"
    return Report((table(title, ("check", "state", "detail"), rows),), data)
