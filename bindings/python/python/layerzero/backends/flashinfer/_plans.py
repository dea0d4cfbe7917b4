"""FlashInfer's plans: what its batched kernels work out on the host before they run, and when that may be used again.

A plan is made from the *values* of page tables and the like. It is used again only while the very same tensors come back and none of
them was written since (torch counts writes; a tensor of inference mode is not counted, so that its plan is made anew), or for
tables that we made ourselves from nothing but shapes. Plans belong to a thread and a stream: scratch memory of one must not be
used by two. A plan handle (`lz.ops.….plan`) has its own plan and scratch memory, and uses them until it is gone: its caller says
when values change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

#: Scratch for partial results, as the library recommends.
SCRATCH_BYTES = 128 << 20
#: Plans of a thread that are kept; each has 8 MiB on the device and 8 MiB on the host.
MOST = 16

_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


class Planned:
    """A wrapper of the library with what it was planned for."""

    __slots__ = ("empty", "versions", "watched", "wrapper")

    def __init__(self, wrapper: Any, watched: tuple[Any, ...], versions: tuple[int, ...] | None, empty: Any) -> None:
        self.wrapper = wrapper
        self.watched = watched
        self.versions = versions
        # Rows of the result that see no key, as a mask on the device; nothing if there are none.
        self.empty = empty


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.plans: OrderedDict[tuple[Any, ...], Planned] = OrderedDict()
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

    def planned(self, key: tuple[Any, ...], device: Any, make: Callable[[Any], Any], plan: Callable[[Any], Any]) -> Planned:
        found = self.plans.get(key)
        if found is not None:
            return found
        if self.is_made:
            raise RuntimeError("the call needs another plan than the handle has; make a new one")
        wrapper = make(torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=device))
        self.plans[key] = Planned(wrapper, (), None, plan(wrapper))
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


def scratch(device: Any) -> Any:
    """The scratch memory of this thread for the stream that is current on the device."""
    key = (device.index, _raw_stream(device.index))
    found = _THREAD.scratch.get(key)
    if found is None:
        found = torch.empty(SCRATCH_BYTES, dtype=torch.uint8, device=device)
        _THREAD.scratch[key] = found
    return found


def _versions(watched: tuple[Any, ...]) -> tuple[int, ...] | None:
    try:
        return tuple([tensor._version for tensor in watched])
    except RuntimeError:
        return None


def planned(
    key: tuple[Any, ...],
    device: Any,
    watched: tuple[Any, ...],
    make: Callable[[Any], Any],
    plan: Callable[[Any], Any],
) -> Planned:
    """The plan for `key` (the kernel and every number it depends on) and the values of `watched`.

    `make` makes a wrapper over scratch memory, `plan` plans it and tells which rows see no key. A capture cannot plan: whoever
    captures has called with the same tensors before.
    """
    if _THREAD.handle is not None:
        return _THREAD.handle.planned(key, device, make, plan)
    key = (*key, device.index, _raw_stream(device.index))
    plans = _THREAD.plans
    found = plans.get(key)
    if found is not None and found.versions is not None:
        for one, other in zip(found.watched, watched, strict=True):
            if one is not other:
                break
        else:
            if found.versions == _versions(watched):
                return found
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("FlashInfer plans on the host, which a capture cannot; call once with the same tensors before it")
    wrapper = make(scratch(device)) if found is None else found.wrapper
    versions = _versions(watched)
    # While it is planned anew the old plan is nobody's.
    plans.pop(key, None)
    made = Planned(wrapper, watched, versions, plan(wrapper))
    plans[key] = made
    while len(plans) > MOST:
        plans.popitem(last=False)
    return made


def forget() -> None:
    """Gives this thread's plans and scratch memory back."""
    _THREAD.plans.clear()
    _THREAD.scratch.clear()
