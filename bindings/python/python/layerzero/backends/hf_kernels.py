"""Kernels of the Hugging Face Hub through the package `kernels`: only locked kernels that are in the local
cache.

Nothing is downloaded: a kernel that is not locked or not in the cache declines with a hint. Locks are read
from `kernels.lock` in the working directory, else from the metadata of installed packages, where `kernels
lock` and installing the project put them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_REPOSITORY = "kernels-community/flash-attn2"


def _locks() -> Iterator[Path]:
    local = Path("kernels.lock")
    if local.is_file():
        yield local.resolve()
    for distribution in metadata.distributions():
        if distribution.read_text("kernels.lock") is not None:
            yield from (Path(str(file.locate())) for file in distribution.files or () if file.name == "kernels.lock")


@cache
def _load(repository: str) -> tuple[Any, str]:
    """The module, or `None` and the reason; loaded once."""
    from kernels import load_kernel

    why = "there is no kernels.lock"
    for lockfile in _locks():
        try:
            return load_kernel(repository, lockfile=lockfile), ""
        except Exception as error:
            why = f"{lockfile}: {error}"
    return None, why


def _module(repository: str) -> Any:
    module, why = _load(repository)
    if module is None:
        message = f"{repository} is not locked or not in the local cache ({why}); run `kernels lock` and `kernels download`"
        raise NotImplementedError(message)
    return module


def _prefill(
    q: Any, k: Any, v: Any, mask: Any, alibi_slopes: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
    layout: str,
) -> Any:  # fmt: skip
    result = _module(_REPOSITORY).flash_attn_func(
        q, k, v, softmax_scale=sm_scale, causal=causal, window_size=(window_left, window_right), softcap=soft_cap
    )
    return result[0] if isinstance(result, tuple) else result


#: Kernels by id.
KERNELS: dict[str, Callable[..., Any]] = {f"hf_kernels.flash_attn2.{family}.prefill": _prefill for family in ("standard", "gqa")}
