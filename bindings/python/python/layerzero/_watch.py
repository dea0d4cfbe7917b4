"""Import hooks: runs actions once a program imports a package, without importing it. Registration with torch waits for torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class _Watch:
    """A meta-path finder that finds nothing itself, and runs an action after a watched module is loaded."""

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
    """Runs the action now if the module is loaded, else after it is imported."""
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
        # The program's import must not fail because of an error here.
        print(f"layerzero: the integration with {name} failed and is disabled: {type(error).__name__}: {error}", file=sys.stderr)


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


def _compile_backend() -> None:
    from torch._dynamo.backends import registry

    def layerzero(module: Any, inputs: Any, **options: Any) -> Any:
        """Compiled graphs around which torch runs the rest."""
        from layerzero._compile.dynamo import backend

        return backend(module, inputs, **options)

    registry.register_backend(layerzero, name="layerzero")


def install() -> None:
    """Installs the import hooks."""
    if os.environ.get("LAYERZERO_TOKENIZERS", "0") not in ("", "0"):
        # The module that defines fast tokenizers; the package itself is imported before it.
        when_imported("transformers.tokenization_utils_tokenizers", _tokenize)
    when_imported("torch", _define)
    when_imported("torch._dynamo", _substitute)
    when_imported("torch._dynamo.backends.registry", _compile_backend)
