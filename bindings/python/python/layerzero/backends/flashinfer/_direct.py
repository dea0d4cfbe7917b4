"""Direct calls of planned wrappers, without the overhead that the library repeats on every run.

A FlashInfer wrapper validates its arguments on every run and collects about thirty of them for its compiled
module, which takes longer than most kernels. The plan fixes all of them except the caller's tensors. So the
first run of a plan is recorded: later runs call the module with the recorded arguments, with their own
tensors substituted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flashinfer

from layerzero import _native

#: Releases whose wrappers are known to pass everything to `_cached_module`; with others every run goes
#: through the wrapper.
_RELEASES = ("0.6.",)
_IS_SUPPORTED = _native.private_interfaces() and getattr(flashinfer, "__version__", "").startswith(_RELEASES)


class Direct(NamedTuple):
    """A function of a compiled module, its arguments, and the indices of the caller's tensors among them."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    indices: tuple[int, ...]


class _Recorder:
    """Replaces a wrapper's compiled module, and records the calls of its functions."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((function, arguments, keywords))
            return function(*arguments, **keywords)

        return call


def record(wrapper: Any, run: Callable[[], Any], tensors: tuple[Any, ...]) -> Direct | None:
    """Runs a wrapper, and returns how to repeat the run with other tensors; `None` if the run cannot be repeated safely."""
    module = getattr(wrapper, "_cached_module", None)
    if module is None or not _IS_SUPPORTED:
        run()
        return None
    recorder = _Recorder(module)
    wrapper._cached_module = recorder
    try:
        run()
    finally:
        wrapper._cached_module = module
    if len(recorder.calls) != 1 or recorder.calls[0][2]:
        return None
    function, arguments, _ = recorder.calls[0]
    indices = []
    for tensor in tensors:
        found = [index for index, one in enumerate(arguments) if one is tensor]
        # A tensor at two indices was passed twice by the caller; the next call may pass two different ones.
        if len(found) != 1:
            return None
        indices.append(found[0])
    # The caller's tensors, and tuples that contain them, are not kept.
    given = {id(tensor) for tensor in tensors}

    def is_given(one: Any) -> bool:
        return id(one) in given or (isinstance(one, tuple) and any(id(part) in given for part in one))

    return Direct(function, tuple(None if is_given(one) else one for one in arguments), tuple(indices))


def run(direct: Direct, tensors: tuple[Any, ...]) -> None:
    """Repeats the recorded call with these tensors."""
    arguments = list(direct.arguments)
    for index, tensor in zip(direct.indices, tensors):  # noqa: B905
        arguments[index] = tensor
    direct.function(*arguments)
