"""Ranks that must select the same kernels: comparing decisions, adopting those of one rank, publishing
digests.

Selection never communicates with other ranks: ranks select different numbers of times, and a collective
inside selection would deadlock. Ranks compare explicitly, all at the same point of the program, on a
separate process group:

    lz.distributed.record()          # from the beginning
    ...                              # warm-up
    lz.distributed.verify()          # every rank
"""

from __future__ import annotations

import hashlib
import struct
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist

from layerzero import _native
from layerzero._control import lock


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


class DisagreementError(_native.LayerZeroError):
    """Ranks selected different kernels, or a rank did not respond."""

    disagreements: tuple[Disagreement, ...] = ()


_GROUPS: dict[tuple[int, float], Any] = {}


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


def verify(
    on_mismatch: Literal["error", "fallback", "best_effort"] = "error", *, timeout: float = 30.0
) -> Agreement:
    """Compares the decisions of all ranks; every rank must call it. Calls that only some ranks made are no disagreement.

    If they differ, ``error`` raises `DisagreementError` on every rank, ``fallback`` has all ranks use the
    kernel of the lowest rank that made the call, or the reference kernel if a rank lacks it, and
    ``best_effort`` warns.
    """
    mine = digest()
    words = torch.tensor(struct.unpack("<4q", bytes.fromhex(mine)), dtype=torch.int64)

    def compare(group: Any) -> bool:
        low, high = words.clone(), words.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
        return torch.equal(low, high)

    if _collective(timeout, compare):
        return Agreement(True, mine, (), {})
    every = _gather(timeout)
    found = _differences(every)
    if not found:
        return Agreement(True, mine, (), {})
    if on_mismatch == "error":
        raise _refusal(found)
    if on_mismatch == "best_effort":
        warnings.warn(str(_refusal(found)), stacklevel=2)
        return Agreement(False, mine, found, {})
    locked = _settle(found, every)
    return Agreement(False, mine, found, locked)


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


def _refusal(found: tuple[Disagreement, ...]) -> DisagreementError:
    lines = [
        f"{one.operation} ({one.context}): "
        + ", ".join(f"rank {rank} {kernel}" for rank, kernel in sorted(one.kernels.items()))
        for one in found
    ]
    error = DisagreementError("ranks selected different kernels\n  " + "\n  ".join(lines))
    error.disagreements = found
    return error


class Watch:
    """Publishes this rank's digest through a store at an interval, and reads those of other ranks. No rank waits for another."""

    def __init__(self, store: Any, rank: int, world_size: int, seconds: float = 10.0) -> None:
        self._store, self._rank, self._world_size, self._seconds = store, rank, world_size, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="layerzero-digests", daemon=True)

    def __enter__(self) -> Watch:
        self.publish()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def publish(self) -> None:
        """Publishes the digest as it is now."""
        self._store.set(f"layerzero/digest/{self._rank}", digest())

    def peers(self) -> dict[int, str]:
        """The digests that were published so far, by rank."""
        found = {}
        for rank in range(self._world_size):
            key = f"layerzero/digest/{rank}"
            if self._store.check([key]):
                found[rank] = self._store.get(key).decode()
        return found

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.publish()
            except RuntimeError:
                # The store ended with the rank that hosts it; nothing can be published any more.
                return
