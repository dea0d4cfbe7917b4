"""Runs of planned wrappers without what the library does again on each of them.

A wrapper of FlashInfer's checks its arguments on every run and gathers some thirty of them for its compiled module, which takes longer than
most kernels. All but the caller's tensors are settled by the plan. So the first run of a plan is listened to: what the module was
called with is kept, and later runs call it with the same, and with their own tensors in the places where the first one's stood.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flashinfer

from layerzero import _native

#: Releases whose wrappers are known to hand everything to `_cached_module`; with others each run goes through the wrapper.
_RELEASES = ("0.6.",)
_IS_KNOWN = _native.private_interfaces() and getattr(flashinfer, "__version__", "").startswith(_RELEASES)


class Direct(NamedTuple):
    """A function of a compiled module, its arguments, and the places of the caller's tensors among them."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    places: tuple[int, ...]


class _Listening:
    """Stands where a wrapper has its compiled module, and hears what that is called with."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.heard: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.heard.append((function, arguments, keywords))
            return function(*arguments, **keywords)

        return call


def listen(wrapper: Any, run: Callable[[], Any], tensors: tuple[Any, ...]) -> Direct | None:
    """Lets a wrapper run, and gives how to do the same with other tensors; nothing if that is not plain to see."""
    module = getattr(wrapper, "_cached_module", None)
    if module is None or not _IS_KNOWN:
        run()
        return None
    listening = _Listening(module)
    wrapper._cached_module = listening
    try:
        run()
    finally:
        wrapper._cached_module = module
    if len(listening.heard) != 1 or listening.heard[0][2]:
        return None
    function, arguments, _ = listening.heard[0]
    places = []
    for tensor in tensors:
        found = [place for place, one in enumerate(arguments) if one is tensor]
        # One that stands in two places was given twice by the caller; the next call may tell them apart.
        if len(found) != 1:
            return None
        places.append(found[0])
    # Nobody's tensors are kept, nor what holds them.
    given = {id(tensor) for tensor in tensors}

    def is_given(one: Any) -> bool:
        return id(one) in given or (isinstance(one, tuple) and any(id(part) in given for part in one))

    return Direct(function, tuple(None if is_given(one) else one for one in arguments), tuple(places))


def run(direct: Direct, tensors: tuple[Any, ...]) -> None:
    """Does again what was listened to, with these tensors."""
    arguments = list(direct.arguments)
    for place, tensor in zip(direct.places, tensors):  # noqa: B905
        arguments[place] = tensor
    direct.function(*arguments)
