"""Every operation of the catalogue as a function; `ops.pyi` has their types. Operations registered by a
program are added here."""

from layerzero._native import ops as _ops

__all__ = sorted(name for name in vars(_ops) if not name.startswith("_"))
globals().update({name: getattr(_ops, name) for name in __all__})


def __dir__() -> list[str]:
    return list(__all__)
