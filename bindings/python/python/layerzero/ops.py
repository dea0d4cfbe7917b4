"""Every operation of the catalog as a function; `ops.pyi` has their types. Operations registered by a
program are added here."""

from typing import NoReturn

from layerzero._native import ops as _ops
from layerzero._native import unknown_function as _unknown_function

__all__ = sorted(name for name in vars(_ops) if not name.startswith("_"))
globals().update({name: getattr(_ops, name) for name in __all__})


def __getattr__(name: str) -> NoReturn:
    # Introspection looks for attributes with underscores, which no operation has at the start.
    if name.startswith("_"):
        raise AttributeError(f"module 'layerzero.ops' has no attribute {name!r}")
    raise _unknown_function(name)


def __dir__() -> list[str]:
    return list(__all__)
