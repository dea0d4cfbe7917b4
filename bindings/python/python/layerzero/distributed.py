"""Several ranks that must decide alike: comparing decisions, taking over those of one rank, publishing digests.

Selection never talks to other ranks: ranks select different numbers of times, and a collective inside of it would wait for ever.
Agreement is asked for, by all ranks at the same place of the program, on a group of its own:

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
    """One call that ranks decided differently."""

    operation: str
    context: str
    # What each rank that met the call decided.
    kernels: dict[int, str]


class Agreement(NamedTuple):
    """What a comparison found."""

    agrees: bool
    digest: str
    disagreements: tuple[Disagreement, ...]
    # Operations that were locked to settle them, with the kernel.
    locked: dict[str, str]


class DisagreementError(_native.LayerZeroError):
    """Ranks decided differently, or one of them did not answer."""

    disagreements: tuple[Disagreement, ...] = ()


_GROUPS: dict[tuple[int, float], Any] = {}


def record() -> None:
    """Begins to record decisions, which is what is compared."""
    _native.record_decisions(True)


def digest() -> str:
    """The digest of what this rank decided so far, and with which version."""
    text = f"{_native.__version__} {_native.decision_digest()}"
    return hashlib.sha256(text.encode()).hexdigest()


def _group(timeout: float) -> Any:
    """A group for comparing alone, so that it can neither delay nor be mixed up with the program's own collectives."""
    key = (id(dist.group.WORLD), timeout)
    if key not in _GROUPS:
        _GROUPS[key] = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
    return _GROUPS[key]


def _together(timeout: float, act: Callable[[Any], Any]) -> Any:
    try:
        return act(_group(timeout))
    except RuntimeError as error:
        raise DisagreementError(f"not every rank answered within {timeout:g} s: {error}") from error


def verify(
    on_mismatch: Literal["error", "fallback", "best_effort"] = "error", *, timeout: float = 30.0
) -> Agreement:
    """Compares what all ranks decided; every rank must call it. Calls that only some ranks met are no disagreement.

    Where they differ, ``error`` raises `DisagreementError` on every rank, ``fallback`` has all ranks use the kernel of the lowest
    rank that met the call, or the reference where one of them lacks it, and ``best_effort`` warns.
    """
    mine = digest()
    words = torch.tensor(struct.unpack("<4q", bytes.fromhex(mine)), dtype=torch.int64)

    def compare(group: Any) -> bool:
        low, high = words.clone(), words.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
        dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
        return torch.equal(low, high)

    if _together(timeout, compare):
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
    """Has every rank use what one rank decided: its kernels are locked, operation by operation. Gives what was locked.

    An operation for which that rank used several kernels stays as it is: which one a call gets depends on its sizes.
    """
    every = _gather(timeout)
    chosen: dict[str, set[str]] = {}
    for (operation, _), kernel in every[rank]["decisions"].items():
        chosen.setdefault(operation, set()).add(kernel.split(" ")[0])
    have = set.intersection(*(set(one["kernels"]) for one in every))
    locked = {}
    for operation, kernels in sorted(chosen.items()):
        kernel = next(iter(kernels))
        if len(kernels) == 1 and kernel in have:
            lock(operation, kernel)
            locked[operation] = kernel
    return locked


def _gather(timeout: float) -> list[dict[str, Any]]:
    ours = {
        "decisions": decisions(),
        "kernels": [kernel["id"] for kernel in _native.kernels()],
    }
    every: list[Any] = [None] * dist.get_world_size()
    _together(timeout, lambda group: dist.all_gather_object(every, ours, group=group))
    return every


def decisions() -> dict[tuple[str, str], str]:
    """What this rank decided: operation and call → kernel and its version."""
    recorded = _native.recorded_decisions()
    return {(operation, context): f"{kernel} {version}" for operation, context, kernel, version in recorded}


def _differences(every: list[dict[str, Any]]) -> tuple[Disagreement, ...]:
    met: dict[tuple[str, str], dict[int, str]] = {}
    for rank, one in enumerate(every):
        for call, kernel in one["decisions"].items():
            met.setdefault(call, {})[rank] = kernel
    return tuple(
        Disagreement(operation, context, kernels)
        for (operation, context), kernels in sorted(met.items())
        if len(set(kernels.values())) > 1
    )


def _settle(found: tuple[Disagreement, ...], every: list[dict[str, Any]]) -> dict[str, str]:
    have = set.intersection(*(set(one["kernels"]) for one in every))
    locked = {}
    for one in found:
        kernel = one.kernels[min(one.kernels)].split(" ")[0]
        kernel = kernel if kernel in have else f"reference.{one.operation}"
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
    error = DisagreementError("ranks decided differently\n  " + "\n  ".join(lines))
    error.disagreements = found
    return error


class Watch:
    """Publishes this rank's digest through a store now and then, and reads the others'. No rank waits for another."""

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
                # The store went away with the rank that held it; there is nobody to tell.
                return
