"""`lz.override_torch()`: functions of torch go through selection while a block runs.

Calls that are not understood completely are passed to torch unchanged: a fallback is torch's own result, bit for bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager

OPERATIONS = ("scaled_dot_product_attention", "rms_norm", "layer_norm", "linear")


class Overridden:
    """What happened to the calls of a block: `calls` counts those that LayerZero ran, by function; `fallbacks` those that torch ran,
    by function and reason."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fallbacks: Counter[tuple[str, str]] = Counter()

    def __repr__(self) -> str:
        lines = [f"{name}: {count} by layerzero" for name, count in sorted(self.calls.items())]
        lines += [f"{name}: {count} by torch, {why}" for (name, why), count in sorted(self.fallbacks.items())]
        return "\n".join(lines) or "no calls"


def override_torch(operations: Iterable[str] = OPERATIONS) -> AbstractContextManager[Overridden]:
    """Runs functions of torch by LayerZero in a ``with`` block of this thread:

        with torch.no_grad(), lz.override_torch() as overridden:
            model(tokens)
        print(overridden)

    The functions are ``torch.nn.functional.scaled_dot_product_attention``, ``rms_norm``, ``layer_norm`` and ``linear``, and so the
    modules that call them. `operations` names a part of them. Each call is passed to torch unchanged if it records gradients, has a
    tensor subclass, another dtype than float32, float16 and bfloat16 or tensors of several dtypes or devices, dropout, a shape that
    the operation does not have, or runs inside of autocast, torch.compile, torch.func, forward-mode differentiation, tracing or
    another dispatch mode. The result of the block counts both kinds of calls.

    Calls that C++ code of torch makes, such as those of a scripted module, are not seen.
    """
    wanted = (operations,) if isinstance(operations, str) else tuple(operations)
    for name in wanted:
        if name not in OPERATIONS:
            raise ValueError(f"unknown function {name!r}; expected one of {', '.join(OPERATIONS)}")
    # Needs torch, which `import layerzero` does not import.
    from layerzero import _override_mode

    overriding: AbstractContextManager[Overridden] = _override_mode.OverrideMode(wanted, Overridden())
    return overriding
