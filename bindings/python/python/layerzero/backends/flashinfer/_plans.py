"""FlashInfer's plans: what its batched kernels work out on the host before they run, and when that may be used again.

A plan is made from the *values* of page tables and the like. It is used again only while the very same tensors come back and none of
them was written since (torch counts writes; a tensor of inference mode is not counted, so that its plan is made anew), or for
tables that we made ourselves from nothing but shapes. Plans belong to a thread and a stream: scratch memory of one must not be
used by two. A plan handle (`lz.ops.….plan`) has its own plan and scratch memory, and uses them until it is gone: its caller says
when values change.

Nearly every call finds the plan of the call before. It is looked for by what can be read off the arguments at once; what a plan is
made from, and by, is worked out only when that finds nothing.
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

#: Scratch for partial results, as the library recommends.
SCRATCH_BYTES = 128 << 20
#: Plans of a thread that are kept; each has 8 MiB on the device and 8 MiB on the host.
MOST = 16
#: Calls whose plan is found at once.
MOST_RECENT = 256

_raw_stream = _native.current_stream


class Recipe(NamedTuple):
    """What a plan depends on besides values, how a wrapper is made over scratch memory, and how it is planned: that tells which rows
    see no key."""

    key: tuple[Any, ...]
    make: Callable[[Any], Any]
    plan: Callable[[Any], Any]


class Planned:
    """A wrapper of the library with what it was planned for."""

    __slots__ = ("direct", "direct_with_lse", "empty", "index", "stream", "versions", "watched", "wrapper")

    def __init__(self, wrapper: Any, index: int, stream: int, watched: tuple[Any, ...], versions: list[int] | None, empty: Any) -> None:
        self.wrapper = wrapper
        self.index, self.stream = index, stream
        # Held, so that no other tensor can take the place of one.
        self.watched = watched
        # Nothing once the plan does not stand any more.
        self.versions = versions
        # Rows of the result that see no key, as a mask on the device; nothing if there are none.
        self.empty = empty
        # How to run without the wrapper, once it was listened to.
        self.direct: Direct | None = None
        self.direct_with_lse: Direct | None = None

    def end(self) -> None:
        """Its wrapper is planned anew, or given up."""
        self.versions = None
        self.watched = ()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.plans: OrderedDict[tuple[Any, ...], Planned] = OrderedDict()
        # By the id of the first tensor that a plan watches, or by its facts if it watches none.
        self.recent: dict[Any, tuple[tuple[Any, ...], Planned]] = {}
        self.scratch: dict[tuple[int, int], Any] = {}
        # Whose plans are made or used just now, if it is a handle's.
        self.handle: _Handle | None = None


class _Made(BaseException):
    """A handle has its plan: the kernel that is underway has nothing more to do."""


class _Handle:
    """The plans of one handle."""

    __slots__ = ("is_made", "plans")

    def __init__(self) -> None:
        self.is_made = False
        self.plans: dict[tuple[Any, ...], Planned] = {}

    def planned(self, facts: tuple[Any, ...], like: Any, recipe: Callable[..., Recipe], arguments: tuple[Any, ...]) -> Planned:
        found = self.plans.get(facts)
        if found is not None:
            return found
        if self.is_made:
            raise RuntimeError("the call needs another plan than the handle has; make a new one")
        made = recipe(facts, *arguments)
        wrapper = made.make(torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=like.device))
        index = like.get_device()
        self.plans[facts] = Planned(wrapper, index, _raw_stream(index), (), None, made.plan(wrapper))
        raise _Made


_THREAD = _OfThread()


def with_plan(kernel: Any) -> Any:
    """Lets handles plan a kernel: its `plan` takes what the kernel takes and gives what runs in its place."""

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
        except _Made:
            handle.is_made = True
        return run

    kernel.plan = plan
    return kernel


def scratch(like: Any) -> Any:
    """The scratch memory of this thread for the stream that is current on a tensor's device."""
    index = like.get_device()
    key = (index, _raw_stream(index))
    found = _THREAD.scratch.get(key)
    if found is None:
        if torch.cuda.is_current_stream_capturing():
            # A graph's memory is the graph's: kept here, it would outlive it.
            return torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=like.device)
        found = _THREAD.scratch[key] = _of_no_pool(like.device)
    return found


def _of_no_pool(device: Any) -> Any:
    """Memory that is kept. Whoever prepares a capture has what a thread allocates come from the graph's own memory, so that another
    thread asks for it."""
    made: list[Any] = []
    context = torch.cuda.stream(torch.cuda.current_stream(device)) if device.type == "cuda" else nullcontext()

    def allocate() -> None:
        with context:
            made.append(torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=device))

    def try_to() -> None:
        with suppress(Exception):
            allocate()

    thread = threading.Thread(target=try_to)
    thread.start()
    thread.join()
    if not made:
        # It says in this thread why there is none.
        allocate()
    return made[0]


def _versions(watched: tuple[Any, ...]) -> list[int] | None:
    if not _native.private_interfaces():
        return None
    try:
        return [tensor._version for tensor in watched]
    except RuntimeError:
        return None


def planned(
    facts: tuple[Any, ...], like: Any, watched: tuple[Any, ...], recipe: Callable[..., Recipe], *arguments: Any
) -> Planned:
    """The plan for `facts` (the kernel and everything it depends on besides values) and the values of `watched`, on the device of
    `like`, where all of them are. `recipe`, called with the facts and `arguments`, says how to make it. A capture cannot plan: whoever
    captures has called with the same tensors before.
    """
    if _THREAD.handle is not None:
        return _THREAD.handle.planned(facts, like, recipe, arguments)
    near = id(watched[0]) if watched else facts
    recent = _THREAD.recent.get(near)
    if recent is not None:
        known, found = recent
        # A plan that stands holds its tensors, so that an id that is found is that of the same tensor.
        if found.versions is not None and known == facts and found.stream == _raw_stream(found.index):
            for one, other, version in zip(found.watched, watched, found.versions):  # noqa: B905
                if one is not other or other._version != version:
                    break
            else:
                return found
    found = _planned(like, watched, *recipe(facts, *arguments))
    if len(_THREAD.recent) >= MOST_RECENT:
        _THREAD.recent.clear()
    _THREAD.recent[near] = (facts, found)
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
        raise NotImplementedError("FlashInfer plans on the host, which a capture cannot; call once with the same tensors before it")
    wrapper = make(scratch(like)) if found is None else found.wrapper
    versions = _versions(watched)
    if found is not None:
        # While it is planned anew the old plan is nobody's.
        found.end()
        del plans[key]
    made = Planned(wrapper, index, stream, watched, versions, plan(wrapper))
    plans[key] = made
    while len(plans) > MOST:
        plans.popitem(last=False)[1].end()
    return made


def forget() -> None:
    """Gives this thread's plans and scratch memory back."""
    _THREAD.plans.clear()
    _THREAD.recent.clear()
    _THREAD.scratch.clear()
