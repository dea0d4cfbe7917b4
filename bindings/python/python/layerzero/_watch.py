"""Does something as soon as a program imports a package, without importing it: what torch must know of us waits for torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class _Watch:
    """Stands first among the finders, finds nothing itself, and has a module that is waited for followed by its action."""

    def __init__(self) -> None:
        self.actions: dict[str, Callable[[], None]] = {}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in self.actions:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Watch):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self.follow(spec.loader, self.actions.pop(name))
                return spec
        return None

    @staticmethod
    def follow(loader: Any, action: Callable[[], None]) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            _act(module.__name__, action)

        loader.exec_module = exec_module


_WATCH = _Watch()


def when_imported(name: str, action: Callable[[], None]) -> None:
    """Acts now if the module is there already, else when it comes."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _act(name, action)
        return
    if _WATCH not in sys.meta_path:
        sys.meta_path.insert(0, _WATCH)
    _WATCH.actions[name] = action


def _act(name: str, action: Callable[[], None]) -> None:
    try:
        action()
    except Exception as error:
        # Somebody else's import must not fail for what we could not do.
        print(f"layerzero: {name} is used without us: {type(error).__name__}: {error}", file=sys.stderr)


def _define() -> None:
    from layerzero import _torch, backends

    _torch.define()
    backends.load_imported()


def _substitute() -> None:
    from layerzero import _torch

    _torch.substitute()


def _tokenize() -> None:
    from layerzero.integrations import tokenizers

    tokenizers.install()


def install() -> None:
    """Waits for what concerns us."""
    if os.environ.get("LAYERZERO_TOKENIZERS", "0") not in ("", "0"):
        # The module with the class of fast tokenizers: while the package itself is imported, it is not there yet.
        when_imported("transformers.tokenization_utils_tokenizers", _tokenize)
    when_imported("torch", _define)
    when_imported("torch._dynamo", _substitute)
