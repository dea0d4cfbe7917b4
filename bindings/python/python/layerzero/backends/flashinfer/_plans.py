"""FlashInfer's plans: what its batched kernels precompute on the host, and when a plan may be reused.

A plan is made from the *values* of page tables and similar tensors. It is reused only while the same tensors
are passed and none of them was written since (torch counts writes; inference-mode tensors have no counter, so
their plan is always made anew), or for tables built here from shapes only. Plans belong to a thread and a
stream: a workspace must not be used by two at once. A plan handle (`lz.ops.….plan`) has its own plan and
workspace, and uses them as long as it lives: its caller is responsible for changed values.

Nearly every call reuses the plan of the previous call. The lookup key is read directly from the arguments;
everything else that a plan needs is computed only on a miss.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from layerzero import _native

if TYPE_CHECKING:
    from layerzero.backends.flashinfer._direct import Direct

#: Workspace for partial results, as the library recommends.
SCRATCH_BYTES = 128 << 20
#: Maximum number of plans per thread; each takes 8 MiB on the device and 8 MiB on the host.
MAX_PLANS = 16
#: Maximum number of entries of the lookup by call.
MAX_RECENT = 256

_raw_stream = _native.current_stream


class Recipe(NamedTuple):
    """The key of a plan except for values, a function that creates a wrapper over a workspace, and a function
    that plans it and returns the mask of rows without a visible key."""

    key: tuple[Any, ...]
    make: Callable[[Any], Any]
    plan: Callable[[Any], Any]


class Planned:
    """A wrapper of the library with its plan."""

    __slots__ = ("direct", "direct_with_lse", "empty", "index", "stream", "versions", "watched", "wrapper")

    def __init__(self, wrapper: Any, index: int, stream: int, watched: tuple[Any, ...], versions: list[int] | None, empty: Any) -> None:
        self.wrapper = wrapper
        self.index, self.stream = index, stream
        # Held, so that no other tensor can have the same id.
        self.watched = watched
        # `None` once the plan is invalid.
        self.versions = versions
        # Mask of output rows without a visible key, on the device; `None` if there are none.
        self.empty = empty
        # Recorded calls that bypass the wrapper.
        self.direct: Direct | None = None
        self.direct_with_lse: Direct | None = None

    def end(self) -> None:
        """Invalidates the plan: its wrapper is planned again, or discarded."""
        self.versions = None
        self.watched = ()


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.plans: OrderedDict[tuple[Any, ...], Planned] = OrderedDict()
        # By the id of the first tensor that a plan watches, or by the call key if it watches none.
        self.recent: dict[Any, tuple[tuple[Any, ...], Planned]] = {}
        self.scratch: dict[tuple[int, int], Any] = {}
        # The plan handle that is being made or used, if there is one.
        self.handle: _Handle | None = None


class _PlanReady(BaseException):
    """A plan handle has its plan: the running kernel stops here."""


class _Handle:
    """The plans of one plan handle."""

    __slots__ = ("is_planned", "plans")

    def __init__(self) -> None:
        self.is_planned = False
        self.plans: dict[tuple[Any, ...], Planned] = {}

    def planned(self, call_key: tuple[Any, ...], like: Any, recipe: Callable[..., Recipe], arguments: tuple[Any, ...]) -> Planned:
        found = self.plans.get(call_key)
        if found is not None:
            return found
        if self.is_planned:
            raise RuntimeError("the call does not match the plan of this handle; make a new plan with lz.ops.<operation>.plan(...)")
        steps = recipe(call_key, *arguments)
        wrapper = steps.make(torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=like.device))
        index = like.get_device()
        self.plans[call_key] = Planned(wrapper, index, _raw_stream(index), (), None, steps.plan(wrapper))
        raise _PlanReady


_THREAD = _ThreadState()


def with_plan(kernel: Any) -> Any:
    """Gives a kernel a `plan` function: it takes the kernel's arguments and returns a function that runs in its place."""

    def plan(*inputs: Any, **params: Any) -> Callable[..., Any]:
        handle = _Handle()

        def run(*inputs: Any, **params: Any) -> Any:
            before, _THREAD.handle = _THREAD.handle, handle
            try:
                return kernel(*inputs, **params)
            finally:
                _THREAD.handle = before

        try:
            run(*inputs, **params)
        except _PlanReady:
            handle.is_planned = True
        return run

    kernel.plan = plan
    return kernel


def scratch(like: Any) -> Any:
    """The workspace of this thread for the current stream of a tensor's device."""
    index = like.get_device()
    key = (index, _raw_stream(index))
    found = _THREAD.scratch.get(key)
    if found is None:
        if torch.cuda.is_current_stream_capturing():
            # During capture memory comes from the graph's pool: cached here, it would outlive the graph.
            return torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=like.device)
        found = _THREAD.scratch[key] = _outside_graph_pool(like.device)
    return found


def _outside_graph_pool(device: Any) -> Any:
    """Allocates long-lived memory. While a capture is prepared, allocations of this thread come from the
    graph's pool, so another thread allocates it."""
    memory: list[Any] = []
    context = torch.cuda.stream(torch.cuda.current_stream(device)) if device.type == "cuda" else nullcontext()

    def allocate() -> None:
        with context:
            memory.append(torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=device))

    def try_to() -> None:
        with suppress(Exception):
            allocate()

    thread = threading.Thread(target=try_to)
    thread.start()
    thread.join()
    if not memory:
        # Allocates again to raise the error in this thread.
        allocate()
    return memory[0]


def _versions(watched: tuple[Any, ...]) -> list[int] | None:
    if not _native.private_interfaces():
        return None
    try:
        return [tensor._version for tensor in watched]
    except RuntimeError:
        return None


def planned(
    call_key: tuple[Any, ...], like: Any, watched: tuple[Any, ...], recipe: Callable[..., Recipe], *arguments: Any
) -> Planned:
    """The plan for `call_key` (the kernel and everything it depends on except values) and the values of
    `watched`, on the device of `like`, where all tensors are. `recipe` is called with the key and
    `arguments`, and returns how to make the plan. Planning is not possible during capture: a call with the
    same tensors must have been made before.
    """
    if _THREAD.handle is not None:
        return _THREAD.handle.planned(call_key, like, recipe, arguments)
    lookup_key = id(watched[0]) if watched else call_key
    recent = _THREAD.recent.get(lookup_key)
    if recent is not None:
        known, found = recent
        # A valid plan holds its tensors, so an equal id means the same tensor.
        if found.versions is not None and known == call_key and found.stream == _raw_stream(found.index):
            for one, other, version in zip(found.watched, watched, found.versions):  # noqa: B905
                if one is not other or other._version != version:
                    break
            else:
                return found
    found = _planned(like, watched, *recipe(call_key, *arguments))
    if len(_THREAD.recent) >= MAX_RECENT:
        _THREAD.recent.clear()
    _THREAD.recent[lookup_key] = (call_key, found)
    return found


def _planned(
    like: Any, watched: tuple[Any, ...], key: tuple[Any, ...], make: Callable[[Any], Any], plan: Callable[[Any], Any]
) -> Planned:
    index = like.get_device()
    stream = _raw_stream(index)
    key = (*key, index, stream)
    plans = _THREAD.plans
    found = plans.get(key)
    if found is not None and found.versions is not None and len(found.watched) == len(watched):
        same = all(one is other for one, other in zip(found.watched, watched, strict=True))
        if same and found.versions == _versions(watched):
            return found
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("FlashInfer plans on the host, which is not possible during CUDA graph capture; make one call with the same tensors before capturing")
    wrapper = make(scratch(like)) if found is None else found.wrapper
    versions = _versions(watched)
    if found is not None:
        # The old plan is invalid while the wrapper is planned again.
        found.end()
        del plans[key]
    result = Planned(wrapper, index, stream, watched, versions, plan(wrapper))
    plans[key] = result
    while len(plans) > MAX_PLANS:
        plans.popitem(last=False)[1].end()
    return result


def forget() -> None:
    """Releases this thread's plans and workspaces."""
    _THREAD.plans.clear()
    _THREAD.recent.clear()
    _THREAD.scratch.clear()
