"""Compares an operation with the result of another implementation: with the selected kernel, and with every kernel that claims the call."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import layerzero as lz

# Relative and absolute tolerance by dtype name; other dtypes must be equal.
Tolerance = Mapping[str, tuple[float, float]]


def outputs(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def eligible_kernels(operation: str, arguments: Mapping[str, Any]) -> list[str]:
    """The kernels that can run a call."""
    candidates = lz.explain(operation, **arguments).to_dict()["candidates"]
    return [candidate["kernel"] for candidate in candidates if not candidate["reasons"]]


def check_every_kernel(
    operation: str,
    make: Callable[[], dict[str, Any]],
    check: Callable[[str, list[Any], dict[str, Any]], None],
) -> int:
    """Calls with fresh arguments from `make`: with the selected kernel, then with each other kernel. `check`
    is called with the kernel, results and arguments.

    Returns how many kernels claimed the call.
    """
    function = getattr(lz.ops, operation.replace(".", "_"))
    arguments = make()
    kernels = eligible_kernels(operation, arguments)
    assert kernels, f"no kernel claims this call of {operation}"
    check("as selected", outputs(function(**arguments)), arguments)
    for kernel in kernels:
        arguments = make()
        lz.lock(operation, kernel)
        try:
            check(kernel, outputs(function(**arguments)), arguments)
        finally:
            lz.unlock(operation)
    return len(kernels)


def assert_near(found: Any, expected: Any, tolerance: Tolerance, who: str) -> None:
    """As numbers: all NaN are equal."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype, f"{who}: {found.dtype}, not {expected.dtype}"
    assert found.shape == expected.shape, f"{who}: {found.shape}, not {expected.shape}"
    relative, absolute = tolerance.get(str(expected.dtype), (0.0, 0.0))
    wide = np.float64
    np.testing.assert_allclose(
        found.astype(wide), expected.astype(wide), rtol=relative, atol=absolute, err_msg=who, equal_nan=True
    )
