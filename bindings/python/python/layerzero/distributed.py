"""Ranks that must select the same kernels: comparing decisions, adopting those of one rank, publishing
digests. Ranks with different hardware form capability groups, within which decisions are compared and adopted.

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
import re
import struct
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, cast

import torch
import torch.distributed as dist

from layerzero import _native
from layerzero._control import config, configure, lock, unlock
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


class CapabilityGroup(NamedTuple):
    """Ranks whose devices of one platform are equal, so that they can use the same kernels there."""

    platform: str
    # The hardware signature of the devices, as in lockfiles.
    hardware: str
    ranks: tuple[int, ...]


class DisagreementError(_native.LayerZeroError):
    """Ranks selected different kernels or have different versions, or a rank did not respond."""

    disagreements: tuple[Disagreement, ...] = ()


OnMismatch = Literal["error", "fallback", "best_effort"]

_GROUPS: dict[tuple[int, float, str], Any] = {}
# Operations that were locked by adopting a decision.
_LOCKED: set[str] = set()
# Adopted decisions of operations with several kernels: operation, condition, kernel, precedence.
_RULES: dict[str, list[tuple[str, str, str, int]]] = {}
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


def hardware() -> dict[str, str]:
    """The hardware signature of this rank's device of each platform: of the host, and of the current device of others."""
    current = torch.cuda.current_device() if torch.cuda.is_available() else 0
    devices = [(platform, signature) for platform, index, _, signature in _native.device_types() if index in (0, current)]
    # The current device is listed after device 0.
    return dict(devices)


def _backend() -> str:
    """The backend of comparisons: gloo, which reports a missing rank, or that of the program if gloo is not available."""
    if dist.is_gloo_available():
        return "gloo"
    return str(dist.get_backend())


def _tensor_device() -> torch.device:
    """Where the tensors of a comparison are: nccl reduces tensors of the current GPU only."""
    return torch.device("cuda", torch.cuda.current_device()) if _backend() == "nccl" else torch.device("cpu")


def _group(timeout: float) -> Any:
    """A separate process group, so that comparisons neither delay the program's collectives nor mix with them."""
    key = (id(dist.group.WORLD), timeout, _backend())
    if key not in _GROUPS:
        _GROUPS[key] = dist.new_group(backend=_backend(), timeout=timedelta(seconds=timeout))
    return _GROUPS[key]


def _collective(timeout: float, act: Callable[[Any], Any]) -> Any:
    try:
        return act(_group(timeout))
    except RuntimeError as error:
        raise DisagreementError(f"not every rank responded within {timeout:g} s; every rank must make this call: {error}") from error


def synchronize(*, timeout: float = 30.0) -> Agreement:
    """Has all ranks select the same kernels; every rank must call it, after warm-up.

    With ``distributed.selection_mode: broadcast`` every rank uses the kernels of the lowest rank of its capability group, which is
    rank 0 if all have the same hardware, as `adopt` does; with ``independent`` ranks keep their own decisions, and `verify` compares them. Versions are compared in both modes. With
    ``tp_invariance.synchronize_selection: false`` only versions are compared.
    """
    if _setting("tp_invariance.synchronize_selection") != "true":
        return _verify(None, timeout, compare_decisions=False)
    if _setting("distributed.selection_mode") == "broadcast":
        agreement = _verify(None, timeout, compare_decisions=False)
        return agreement._replace(locked=adopt(timeout=timeout))
    return verify(timeout=timeout)


def verify(on_mismatch: OnMismatch | None = None, *, timeout: float = 30.0) -> Agreement:
    """Compares the versions and the decisions of all ranks; every rank must call it. Calls that only some ranks made, and calls on
    different hardware, are no disagreement. With ``distributed.verify_selections: false`` only versions are compared.

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
    numbers = struct.unpack("<4q", hashlib.sha256(compared.encode()).digest())
    words = torch.tensor(numbers, dtype=torch.int64, device=_tensor_device())

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
    return Agreement(False, mine, found, _adopt(every, settle=frozenset(one.operation for one in found)))


def adopt(rank: int | None = None, *, timeout: float = 30.0) -> dict[str, str]:
    """Has every rank use the decisions of one rank, or by default of the lowest rank of its capability group that used the operation;
    every rank must call it. Returns the operations with the adopted kernels.

    An operation for which that rank used one kernel is locked to it. One with several kernels gets a rule per decision: for the sizes
    of the decision its kernel is selected, if it can run the call. Kernels that a rank lacks are not adopted.
    """
    return _adopt(_gather(timeout), rank)


def _adopt(every: list[dict[str, Any]], rank: int | None = None, settle: frozenset[str] | None = None) -> dict[str, str]:
    """Adopts all operations, or only those of `settle`, which get the reference kernel if a rank lacks an adopted kernel."""
    own = dist.get_rank()
    adopted: dict[str, set[str]] = {}
    rules: list[tuple[str, str, str, int]] = []
    for group in _capability_groups(every):
        if own not in group.ranks:
            continue
        leaders = group.ranks if rank is None else (rank,)
        common = set.intersection(*(set(every[one]["kernels"]) for one in {*group.ranks, *leaders}))
        for operation, found in _rules_of(every, leaders, group.platform).items():
            if settle is not None and operation not in settle:
                continue
            kernels = {kernel for _, _, kernel, _ in found}
            if settle is not None and not kernels <= common:
                kernels = {f"reference.{operation}" if group.platform == "cpu" else f"torch.reference.{operation}"}
            elif kernels & common:
                kernels &= common
                rules += [rule for rule in found if rule[2] in kernels]
            else:
                continue
            adopted.setdefault(operation, set()).update(kernels)
    several = {operation for operation, kernels in adopted.items() if len(kernels) > 1}
    if settle is None:
        _RULES.clear()
    for operation in adopted:
        _RULES.pop(operation, None)
    for rule in rules:
        if rule[0] in several:
            _RULES.setdefault(rule[0], []).append(rule)
    _native.adopt_decisions([rule for found in _RULES.values() for rule in found])
    for operation in several & _LOCKED:
        unlock(operation)
    for operation in sorted(adopted.keys() - several):
        lock(operation, next(iter(adopted[operation])))
        _LOCKED.add(operation)
    _LOCKED.difference_update(several)
    return {operation: ", ".join(sorted(kernels)) for operation, kernels in sorted(adopted.items())}


def _rules_of(every: list[dict[str, Any]], leaders: tuple[int, ...], platform: str) -> dict[str, list[tuple[str, str, str, int]]]:
    """The decisions on a platform by operation, each of the first of these ranks that used the operation there."""
    found: dict[str, list[tuple[str, str, str, int]]] = {}
    for leader in leaders:
        own: dict[str, list[tuple[str, str, str, int]]] = {}
        for rule in every[leader]["rules"]:
            if _platform_of(rule[1]) == platform:
                own.setdefault(rule[0], []).append(rule)
        found = own | found
    return found


def capability_groups(*, timeout: float = 30.0) -> tuple[CapabilityGroup, ...]:
    """The ranks with equal devices, by platform; every rank must call it."""
    return _capability_groups(_gather(timeout))


def _capability_groups(every: list[dict[str, Any]]) -> tuple[CapabilityGroup, ...]:
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, one in enumerate(every):
        for device in one["hardware"].items():
            ranks.setdefault(device, []).append(rank)
    return tuple(CapabilityGroup(*device, tuple(found)) for device, found in sorted(ranks.items()))


def _platform_of(context: str) -> str:
    """The platform in the text of a decision's context or condition; the host for operations without tensors on a device."""
    found = re.search(r'\bon=(\w+)|\bplatform == "(\w+)"', context)
    return (found[1] or found[2]) if found else "cpu"


def _gather(timeout: float) -> list[dict[str, Any]]:
    ours = {
        "decisions": decisions(),
        "rules": _native.adoptable_decisions(),
        "kernels": [kernel["id"] for kernel in _native.kernels()],
        "versions": versions(),
        "hardware": hardware(),
    }
    every: list[Any] = [None] * dist.get_world_size()
    _collective(timeout, lambda group: dist.all_gather_object(every, ours, group=group))
    return every


def decisions() -> dict[tuple[str, str], str]:
    """This rank's recorded decisions: operation and context → kernel and its version."""
    recorded = _native.recorded_decisions()
    return {(operation, context): f"{kernel} {version}" for operation, context, kernel, version in recorded}


def _differences(every: list[dict[str, Any]]) -> tuple[Disagreement, ...]:
    by_call: dict[tuple[str, str, str], dict[int, str]] = {}
    for rank, one in enumerate(every):
        for (operation, context), kernel in one["decisions"].items():
            hardware = one["hardware"].get(_platform_of(context), "")
            by_call.setdefault((operation, context, hardware), {})[rank] = kernel
    return tuple(
        Disagreement(operation, context, kernels)
        for (operation, context, _), kernels in sorted(by_call.items())
        if len(set(kernels.values())) > 1
    )


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
