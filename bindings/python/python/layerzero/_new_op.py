"""The module that ``lz new-op`` writes next to the schema of a new operation."""

from __future__ import annotations

_MODULE = '''"""The operation {name} and a kernel for it. To try it: python {function}.py"""

from pathlib import Path

import layerzero as lz

{function} = lz.register_operation(Path(__file__).with_suffix(".yaml"))


# The inputs come by position and the params by keyword, as the caller's own objects: here numpy arrays or torch tensors on the
# host. `lz docs python` describes what a kernel may declare: dtypes, limits, priority.
@lz.register_kernel(operation="{name}", id="mine.{function}", platform="cpu")
def kernel(x, *, scale):
    return (x * scale).astype(x.dtype) if hasattr(x, "astype") else (x * scale).to(x.dtype)


if __name__ == "__main__":
    import numpy as np

    x = np.array([[1.0, -2.0, 0.5]], np.float32)
    print(lz.ops.{function}(x, scale=4.0))
    print(lz.explain("{name}", x, scale=4.0))
'''


def module(name: str) -> str:
    """The text of the module for an operation."""
    return _MODULE.replace("{name}", name).replace("{function}", name.replace(".", "_"))
