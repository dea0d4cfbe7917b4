"""Ranks that must select the same kernels: comparing decisions, adopting those of one rank, publishing
digests.

Selection never communicates with other ranks: ranks select different numbers of times, and a collective
inside selection would deadlock. Ranks compare explicitly, all at the same point of the program, on a
separate process group:

    lz.distributed.record()          # from the beginning
    ...                              # warm-up
    lz.distributed.synchronize()     # every rank

The settings `distributed.*` and `tp_invariance.synchronize_selection` say what `synchronize`, `verify` and `Watch` do.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.distributed as dist

from layerzero import _native
from layerzero._control import config, configure, lock
from layerzero._telemetry import metrics


class Disagreement(NamedTuple):
    """One call for which ranks selected different kernels."""

    operation: str
    context: str
    # The kernel of each rank that made the call.
    kernels: dict[int, str]


class Agreement(NamedTuple):
    """The result of a comparison."""

    agrees: bool
    digest: str
    disagreements: tuple[Disagreement, ...]
    # Operations that were locked to resolve disagreements, with the kernel.
    locked: dict[str, str]
    # Versions that differ, of LayerZero and of kernels: name → version of each rank that has it.
    versions: dict[str, dict[int, str]] = {}  # noqa: RUF012 (a default of a named tuple, never changed)


class DisagreementError(_native.LayerZeroError):
    """Ranks selected different kernels or have different versions, or a rank did not respond."""

    disagreements: tuple[Disagreement, ...] = ()


OnMismatch = Literal["error", "fallback", "best_effort"]

_GROUPS: dict[tuple[int, float], Any] = {}
_LOG = logging.getLogger("layerzero.distributed")


def _setting(key: str) -> str:
    return str(config()[key].value)


def versions() -> dict[str, str]:
    """The versions of LayerZero and of every kernel of this rank."""
    return {"layerzero": _native.__version__} | {kernel["id"]: kernel["version"] for kernel in _native.kernels()}


def record() -> None:
    """Starts recording decisions, which are what is compared."""
    _native.record_decisions(True)


def digest() -> str:
    """The digest of this rank's recorded decisions and of LayerZero's version."""
    text = f"{_native.__version__} {_native.decision_digest()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _group(timeout: float) -> Any:
    """A separate process group, so that comparisons neither delay the program's collectives nor mix with them."""
    key = (id(dist.group.WORLD), timeout)
    if key not in _GROUPS:
        _GROUPS[key] = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return _GROUPS[key]


def _collective(timeout: float, act: Callable[[Any], Any]) -> Any:
    try:
        return act(_group(timeout))
    except RuntimeError as error:
        raise DisagreementError(f"not every rank responded within {timeout:g} s; every rank must make this call: {error}") from error


def synchronize(*, timeout: float = 30.0) -> Agreement:
    """Has all ranks select the same kernels; every rank must call it, after warm-up.

    With ``distributed.selection_mode: broadcast`` the kernels of rank 0 are locked on every rank, as `adopt` does; with
    ``independent`` ranks keep their own decisions, and `verify` compares them. Versions are compared in both modes. With
    ``tp_invariance.synchronize_selection: false`` only versions are compared.
    """
    if _setting("tp_invariance.synchronize_selection") != "true":
        return _verify(None, timeout, compare_decisions=False)
    if _setting("distributed.selection_mode") == "broadcast":
        agreement = _verify(None, timeout, compare_decisions=False)
        return agreement._replace(locked=adopt(0, timeout=timeout))
    return verify(timeout=timeout)


def verify(on_mismatch: OnMismatch | None = None, *, timeout: float = 30.0) -> Agreement:
    """Compares the versions and the decisions of all ranks; every rank must call it. Calls that only some ranks made are no
    disagreement. With ``distributed.verify_selections: false`` only versions are compared.

    If they differ, ``error`` raises `DisagreementError` on every rank, ``fallback`` has all ranks use the
    kernel of the lowest rank that made the call, or the reference kernel if a rank lacks it, and
    ``best_effort`` warns. Ranks with different versions cannot share kernels: ``fallback`` disables all but the reference
    kernels there. The default is ``distributed.on_version_mismatch``.
    """
    return _verify(on_mismatch, timeout, _setting("distributed.verify_selections") == "true")


def _verify(on_mismatch: OnMismatch | None, timeout: float, compare_decisions: bool) -> Agreement:
    on_mismatch = on_mismatch or cast(OnMismatch, _setting("distributed.on_version_mismatch"))
    mine = digest()
    compared = f"{sorted(versions().items())} {mine if compare_decisions else ''}"
    words = torch.tensor(struct.unpack("<4q", hashlib.sha256(compared.encode()).digest()), dtype=torch.int64)

    def compare(group: Any) -> bool:
        low, high = words.clone(), words.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
        return torch.equal(low, high)

    if _collective(timeout, compare):
        return Agreement(True, mine, (), {})
    every = _gather(timeout)
    differing = _version_differences([one["versions"] for one in every])
    found = _differences(every) if compare_decisions else ()
    if not (found or differing):
        return Agreement(True, mine, (), {})
    if on_mismatch == "error":
        raise _refusal(found, differing)
    if on_mismatch == "best_effort":
        warnings.warn(str(_refusal(found, differing)), stacklevel=3)
        return Agreement(False, mine, found, {}, differing)
    if differing:
        _LOG.warning("%s; only reference kernels run from now on", _refusal((), differing))
        configure(enabled=False)
        return Agreement(False, mine, found, {}, differing)
    return Agreement(False, mine, found, _settle(found, every))


def adopt(rank: int = 0, *, timeout: float = 30.0) -> dict[str, str]:
    """Has every rank use the decisions of one rank: its kernels are locked, operation by operation. Returns
    what was locked.

    An operation for which that rank used several kernels is not locked: the kernel of a call depends on its
    sizes.
    """
    every = _gather(timeout)
    chosen: dict[str, set[str]] = {}
    for (operation, _), kernel in every[rank]["decisions"].items():
        chosen.setdefault(operation, set()).add(kernel.split(" ")[0])
    common = set.intersection(*(set(one["kernels"]) for one in every))
    locked = {}
    for operation, kernels in sorted(chosen.items()):
        kernel = next(iter(kernels))
        if len(kernels) == 1 and kernel in common:
            lock(operation, kernel)
            locked[operation] = kernel
    return locked


def _gather(timeout: float) -> list[dict[str, Any]]:
    ours = {
        "decisions": decisions(),
        "kernels": [kernel["id"] for kernel in _native.kernels()],
        "versions": versions(),
    }
    every: list[Any] = [None] * dist.get_world_size()
    _collective(timeout, lambda group: dist.all_gather_object(every, ours, group=group))
    return every


def decisions() -> dict[tuple[str, str], str]:
    """This rank's recorded decisions: operation and context → kernel and its version."""
    recorded = _native.recorded_decisions()
    return {(operation, context): f"{kernel} {version}" for operation, context, kernel, version in recorded}


def _differences(every: list[dict[str, Any]]) -> tuple[Disagreement, ...]:
    by_call: dict[tuple[str, str], dict[int, str]] = {}
    for rank, one in enumerate(every):
        for call, kernel in one["decisions"].items():
            by_call.setdefault(call, {})[rank] = kernel
    return tuple(
        Disagreement(operation, context, kernels)
        for (operation, context), kernels in sorted(by_call.items())
        if len(set(kernels.values())) > 1
    )


def _settle(found: tuple[Disagreement, ...], every: list[dict[str, Any]]) -> dict[str, str]:
    common = set.intersection(*(set(one["kernels"]) for one in every))
    locked = {}
    for one in found:
        kernel = one.kernels[min(one.kernels)].split(" ")[0]
        kernel = kernel if kernel in common else f"reference.{one.operation}"
        if one.operation not in locked:
            lock(one.operation, kernel)
            locked[one.operation] = kernel
    return locked


def _version_differences(every: list[dict[str, str]]) -> dict[str, dict[int, str]]:
    """Names that several ranks have with different versions."""
    by_name: dict[str, dict[int, str]] = {}
    for rank, one in enumerate(every):
        for name, version in one.items():
            by_name.setdefault(name, {})[rank] = version
    return {name: ranks for name, ranks in sorted(by_name.items()) if len(set(ranks.values())) > 1}


def _refusal(found: tuple[Disagreement, ...], differing: dict[str, dict[int, str]]) -> DisagreementError:
    def by_rank(values: dict[int, str]) -> str:
        return ", ".join(f"rank {rank} {value}" for rank, value in sorted(values.items()))

    lines = [f"{name}: {by_rank(ranks)}" for name, ranks in differing.items()]
    lines += [f"{one.operation} ({one.context}): {by_rank(one.kernels)}" for one in found]
    what = "have different versions" if differing else "selected different kernels"
    error = DisagreementError(f"ranks {what}\n  " + "\n  ".join(lines))
    codes = ["RANK_VERSION_MISMATCH"] * len(differing) + ["RANK_DECISION_MISMATCH"] * len(found)
    error.reasons = [_native.reason(code, line) for code, line in zip(codes, lines, strict=True)]
    error.disagreements = found
    return error


class Watch:
    """Publishes this rank's digest and versions through a store at an interval, and reads those of other ranks. No rank waits
    for another.

    After every ``distributed.version_check_interval`` selections the versions of all ranks are compared. If they differ,
    ``distributed.on_version_mismatch`` decides: ``error`` logs an error, and leaving the `with` block raises
    `DisagreementError`; ``fallback`` disables all but the reference kernels; ``best_effort`` logs a warning.
    """

    def __init__(self, store: Any, rank: int, world_size: int, seconds: float = 10.0) -> None:
        self._store, self._rank, self._world_size, self._seconds = store, rank, world_size, seconds
        self._checked_at: int | None = None
        self._mismatch: DisagreementError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="layerzero-digests", daemon=True)

    def __enter__(self) -> Watch:
        self.publish()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._mismatch is not None and kind is None:
            raise self._mismatch

    def publish(self) -> None:
        """Publishes the digest and the versions as they are now."""
        self._store.set(f"layerzero/versions/{self._rank}", json.dumps(versions()))
        self._store.set(f"layerzero/digest/{self._rank}", digest())

    def peers(self) -> dict[int, str]:
        """The digests that were published so far, by rank."""
        found = {}
        for rank in range(self._world_size):
            key = f"layerzero/digest/{rank}"
            if self._store.check([key]):
                found[rank] = self._store.get(key).decode()
        return found

    def check_versions(self) -> dict[str, dict[int, str]]:
        """Compares the versions that were published so far, and acts as the setting says. Returns those that differ."""
        every: list[dict[str, str]] = [{} for _ in range(self._world_size)]
        for rank in range(self._world_size):
            key = f"layerzero/versions/{rank}"
            if self._store.check([key]):
                every[rank] = json.loads(self._store.get(key))
        differing = _version_differences(every)
        if differing and self._mismatch is None:
            error, action = _refusal((), differing), _setting("distributed.on_version_mismatch")
            if action == "error":
                _LOG.error("%s", error)
                self._mismatch = error
            else:
                _LOG.warning("%s", error)
            if action == "fallback":
                configure(enabled=False)
        return differing

    def _check_if_due(self) -> None:
        interval, now = int(_setting("distributed.version_check_interval")), metrics()["selections"]
        if self._checked_at is None or now - self._checked_at >= interval:
            self._checked_at = now
            self.check_versions()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.publish()
                self._check_if_due()
            except RuntimeError:
                # The store ended with the rank that hosts it; nothing can be published any more.
                return
