"""Attention whose scores are modified by an expression: with which tiles the kernel runs, and when it is compiled.

Each expression is a kernel of its own, which takes seconds to compile. Unless `jit.mode` is `inline`, that happens on a thread, and calls are
declined meanwhile, so that the composition of torch functions runs them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import triton.language as tl

from layerzero import _native
from layerzero.backends import triton as launching
from layerzero.backends.triton import _paged_kernels
from layerzero.backends.triton import _score_mod_kernels as kernels
from layerzero.backends.triton._paged import _processors
from layerzero.backends.triton._score_expressions import MAX_LENGTH, Expression, expression_of

#: The largest number of programs that share the keys of one tile.
_MAX_SPLITS = 32


class Tile(NamedTuple):
    """Rows (pairs of a query and a head), keys that are read at once, warps, and stages of the pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


@cache
def _shared_memory(device: int) -> int:
    """Bytes of shared memory that one program can have; those of Hopper for the interpreter."""
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin) if device >= 0 else 232448


def tile_of(rows: int, features: int, size: int, mask_size: int, causal: bool, memory: int) -> Tile:
    """The tile for so many rows of one key head, for keys and values with `features` together of `size` bytes each and a mask of elements of
    `mask_size` bytes: the fastest on an H200, or a smaller one if that would not fit into shared memory."""
    least = max(16, launching._power(rows))
    if size == 4:
        tile = Tile(min(least, 32), 32, 4, 1)
    elif least <= 64 or features <= 128 or features > 256 or causal or mask_size:
        tile = Tile(min(least, 64), 64 if features <= 256 else 32, 4, 3)
    else:
        tile = Tile(128, 128, 8, 3)
    while tile.stages > 1 and _bytes(tile, features, size, mask_size) > memory:
        tile = tile._replace(stages=tile.stages - 1)
    return tile if _bytes(tile, features, size, mask_size) <= memory else Tile(16, 32, 4, 1)


def _bytes(tile: Tile, features: int, size: int, mask_size: int) -> int:
    """Shared memory for the queries of a tile, and for its keys, values and mask in every stage."""
    return tile.rows * features // 2 * size + tile.stages * tile.keys * (features * size + tile.rows * mask_size)


def _splits(programs: int, keys: int, per_read: int, device: int) -> int:
    """Enough programs for every multiprocessor, but at least a few reads of keys for each."""
    wanted = _processors(device) // max(programs, 1)
    if wanted < 2:
        return 1
    return min(launching._power(wanted), launching._power(-(-keys // (2 * per_read))), _MAX_SPLITS)


class _Constants(NamedTuple):
    """What a kernel is compiled for, besides the types of its arguments."""

    modify: Any
    real: Any
    parameters: int
    causal: bool
    has_left: bool
    has_right: bool
    has_cap: bool
    has_slopes: bool
    has_sinks: bool
    has_lengths: bool
    has_lse: bool
    mask: int
    unit: int
    splits: int
    is_ragged: bool
    keys: int
    requests: int
    has_k_scale: bool
    has_v_scale: bool
    head_dim: int
    value_dim: int
    m_block: int
    n_block: int
    d_block: int
    v_block: int


class _Compilation(NamedTuple):
    """One kernel: its key, the dtypes of its tensors and how many numbers follow them, and how it is compiled."""

    key: tuple[Any, ...]
    dtypes: tuple[Any, ...]
    integers: int
    recipe: Any


#: Keys of compiled kernels, and why the others could not be compiled.
_COMPILED: dict[tuple[Any, ...], str] = {}
_WAITING: OrderedDict[tuple[Any, ...], _Compilation] = OrderedDict()
_CHANGED = threading.Condition()
_THREAD: list[threading.Thread] = []


def _compile(one: _Compilation) -> None:
    """Compiles a kernel without running it, and records the outcome."""
    problem = ""
    try:
        with torch.cuda.device(one.key[-1]):
            recipe = one.recipe
            kernel, constants = recipe.kernel, recipe.constants
            names = kernel.arg_names[len(one.dtypes) + one.integers + 2 :]
            numbers = [1] * one.integers + [1.0, 1.0]
            # Dtypes stand for aligned tensors: no device memory is allocated.
            kernel.warmup(*one.dtypes, *numbers, **dict(zip(names, constants, strict=True)), num_warps=recipe.warps, num_stages=recipe.stages, grid=(1, 1))
            if constants.splits > 1:
                sizes = {"HAS_LSE": constants.has_lse, "SPLITS": constants.splits, "D_BLOCK": constants.v_block}
                out, lse, partial, stats = one.dtypes[-4:]
                _paged_kernels.combine.warmup(partial, stats, out, lse, constants.value_dim, **sizes, num_warps=4, grid=(1, 1))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:500]
    with _CHANGED:
        _COMPILED[one.key] = problem
        _WAITING.pop(one.key, None)
        _CHANGED.notify_all()


def _work() -> None:
    while True:
        with _CHANGED:
            while not _WAITING:
                if not _CHANGED.wait(60) and not _WAITING:
                    _THREAD.clear()
                    return
            one = next(iter(_WAITING.values()))
        _compile(one)


def _compile_in_background(one: _Compilation) -> None:
    with _CHANGED:
        _WAITING.setdefault(one.key, one)
        if not _THREAD:
            # The process does not wait for it.
            _THREAD.append(threading.Thread(target=_work, name="lz-score-mod", daemon=True))
            _THREAD[0].start()
        _CHANGED.notify_all()


def wait_for_compilations(seconds: float) -> bool:
    """Waits until no expression is left to compile; returns whether that is so."""
    with _CHANGED:
        return _CHANGED.wait_for(lambda: not _WAITING, seconds)


_INLINE = threading.local()


@contextmanager
def compiled_inline() -> Iterator[None]:
    """Expressions of calls of this thread are compiled in the calls."""
    before = getattr(_INLINE, "is_set", False)
    _INLINE.is_set = True
    try:
        yield
    finally:
        _INLINE.is_set = before


def _setting(name: str) -> str:
    return next((value for key, value, _ in _native.config() if key == name), "").strip('"')


def _ensure_compiled(one: _Compilation) -> None:
    """Raises `NotImplementedError` unless the kernel can be launched now."""
    problem = _COMPILED.get(one.key)
    if problem == "":
        return
    if problem is not None:
        raise NotImplementedError(f"the kernel of this score_mod could not be compiled: {problem}")
    if torch.cuda.is_current_stream_capturing():
        raise NotImplementedError("the kernel of this score_mod is not compiled, which is not possible during CUDA graph capture")
    if getattr(_INLINE, "is_set", False) or _setting("jit.mode") == "inline":
        _compile(one)
        return _ensure_compiled(one)
    if _setting("jit.enable_background_compile") == "false":
        raise NotImplementedError("the kernel of this score_mod is not compiled, and jit.enable_background_compile is false")
    _compile_in_background(one)
    raise NotImplementedError("the kernel of this score_mod is being compiled")


def _unit(*tensors: Any) -> int:
    """The number of elements of 16 bytes if all strides are multiples of it, else 1."""
    count = 16 // tensors[0].element_size()
    return count if all(stride % count == 0 for one in tensors for stride in one.stride()[:-1]) else 1


def _strides(tensor: Any, unit: int, order: tuple[int, ...]) -> tuple[int, ...]:
    strides = tensor.stride()
    return tuple(strides[dim] // unit if dim >= 0 else 0 for dim in order)


class _Plan(NamedTuple):
    """How calls of one form are launched."""

    key: tuple[Any, ...]
    recipe: Any
    integers: tuple[int, ...]
    programs: int
    splits: int
    out_shape: tuple[int, ...]
    value_dim: int


#: Plans by shapes, strides, dtypes and flags, of which there are at most `_MAX_PLANS`.
_PLANS: dict[tuple[Any, ...], _Plan] = {}
_MAX_PLANS = 4096


class _Requests(NamedTuple):
    """Tables of requests of different lengths, whose values stay on the device. Queries without `qo_indptr` are one for each request; keys without
    `kv_indices` follow each other, otherwise they are in pages. FP8 caches may have scales."""

    qo_indptr: Any
    kv_indptr: Any
    kv_indices: Any = None
    last_page_len: Any = None
    k_scale: Any = None
    v_scale: Any = None

    @property
    def number(self) -> int:
        """How many there are."""
        return int(self.kv_indptr.shape[0]) - 1


def _form(tensor: Any) -> Any:
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _plan(
    q: Any, k: Any, v: Any, mask: Any, slopes: Any, sinks: Any, expression: Expression, params: Any, lengths: Any, requests: _Requests | None,
    causal: bool, offset: int, window_left: int, window_right: int, has_cap: bool, return_lse: bool, heads_first: bool,
) -> _Plan:  # fmt: skip
    is_ragged = requests is not None and requests.qo_indptr is not None
    page_list = None if requests is None else requests.kv_indices
    token, head = (2, 1) if heads_first else (1, 2)
    # Dimensions of the batch, the token and the head; of a cache, of the page, the slot and the head.
    q_order = (-1, 0, 1) if is_ragged else (0, -1, 1) if q.dim() == 3 else (0, token, head)
    kv_order = (-1, 0, 1) if k.dim() == 3 else (0, token, head)
    batch = q.shape[0] if requests is None else requests.number
    heads, head_dim, value_dim, kv_heads = q.shape[q_order[2]], q.shape[-1], v.shape[-1], k.shape[kv_order[2]]
    seq_q, seq_k = 1 if q_order[1] < 0 else q.shape[q_order[1]], k.shape[kv_order[1]]
    group, size, device = heads // kv_heads, q.element_size(), q.get_device()
    mask_size = 0 if mask is None else mask.element_size()
    # How many queries a request has is known on the device only.
    queries = -(-seq_q // batch) if is_ragged else seq_q
    tile = tile_of(queries * group, head_dim + value_dim, size, mask_size, causal, _shared_memory(device))
    if is_ragged:
        programs = (seq_q * group // tile.rows + min(batch, seq_q)) * kv_heads
    else:
        programs = -(-seq_q * group // tile.rows) * kv_heads * batch
    capacity = seq_k if page_list is None else page_list.shape[0] * seq_k
    splits = _splits(programs, capacity, tile.keys, device)
    mask_kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    mask_strides = mask.expand(batch, heads, seq_q, seq_k).stride() if mask_kind else (0, 0, 0, 0)
    slope_strides = (0, 0) if slopes is None else slopes.expand(batch, heads).stride()
    count = 0 if params is None else params.shape[-1]
    param_strides = params.stride() if count else (0, 0, 0)
    unit = _unit(q, k, v)
    k_scale, v_scale = (None, None) if requests is None else (requests.k_scale, requests.v_scale)
    scale_strides = (0 if scale is None else scale.expand(kv_heads).stride(0) for scale in (k_scale, v_scale))
    # Rows of the outputs, which are contiguous.
    rows = (heads * seq_q, 1, seq_q) if heads_first and q.dim() == 4 else (0 if is_ragged else heads * seq_q, heads, 1)
    # A window that is wider than all keys hides none.
    windows = (min(window_left, 4 * MAX_LENGTH), min(window_right, 4 * MAX_LENGTH))
    integers = (
        batch, 1 if page_list is None else seq_k, seq_q, seq_k, heads, kv_heads, offset, *windows, *_strides(q, unit, q_order),
        *_strides(k, unit, kv_order), *_strides(v, unit, kv_order), *rows, *mask_strides, *slope_strides, *param_strides, *scale_strides,
    )  # fmt: skip
    if max(integers) >= 1 << 31:
        raise NotImplementedError("a tensor of the call has strides that are not 32-bit integers")
    constants = _Constants(
        expression.modify, tl.float64 if size == 4 else tl.float32, count, causal, window_left >= 0, window_right >= 0, has_cap,
        slopes is not None, sinks is not None, lengths is not None, return_lse, mask_kind, unit, splits, is_ragged,
        0 if requests is None else 1 if page_list is None else 2, launching._power(batch) if is_ragged else 1, k_scale is not None,
        v_scale is not None, head_dim, value_dim, tile.rows, tile.keys, max(16, launching._power(head_dim)), max(16, launching._power(value_dim)),
    )  # fmt: skip
    key = ("score_mod", expression.number, *constants[2:], *tile, mask.dtype if mask_kind else None, k.dtype, q.dtype, device)
    recipe = launching._Recipe(kernels.attend, constants, tile.warps, tile.stages)
    return _Plan(key, recipe, integers, programs, splits, (*q.shape[:-1], value_dim), value_dim)


def attend(
    q: Any, k: Any, v: Any, mask: Any, slopes: Any, sinks: Any, expression: Expression, params: Any, lengths: Any, *,
    causal: bool, offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool, heads_first: bool,
    requests: _Requests | None = None,
) -> Any:  # fmt: skip
    """Queries ``[B, M, H, D]`` or ``[B, H, D]`` over keys ``[B, L, G, D]``, with heads first if `heads_first`. With `requests`, queries
    ``[T, H, D]`` over keys ``[L, G, D]`` or pages ``[P, S, G, D]``."""
    device = q.get_device()
    flags = (causal, offset, window_left, window_right, soft_cap > 0, return_lse, heads_first)
    call = (
        _form(q), _form(k), v.shape, v.stride(), _form(mask), _form(slopes), sinks is None, expression.number,
        _form(params), lengths is None, flags, device, None if requests is None else tuple(map(_form, requests)),
    )  # fmt: skip
    plan = _PLANS.get(call)
    if plan is None:
        plan = _plan(q, k, v, mask, slopes, sinks, expression, params, lengths, requests, *flags)
        if len(_PLANS) >= _MAX_PLANS:
            _PLANS.clear()
        _PLANS[call] = plan
    key, recipe, integers, programs, splits, out_shape, value_dim = plan
    out = q.new_empty(out_shape)
    lse = torch.empty(out_shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    partial = stats = out
    if splits > 1:
        partial = torch.empty((*out_shape[:-1], splits, value_dim), dtype=torch.float32, device=q.device)
        # Large scores of f32 inputs do not fit into f32.
        stats = torch.empty((*out_shape[:-1], splits, 2), dtype=torch.float64 if q.dtype == torch.float32 else torch.float32, device=q.device)
    if mask is not None and mask.dtype == torch.bool:
        mask = mask.view(torch.uint8)
    # The text, which needs no alignment, excludes a limit in the descriptor.
    tables = tuple(q if table is None else table for table in (requests or (None,) * 6))
    if any(tensor is not None and tensor.data_ptr() % 16 for tensor in (q, k, v, mask, slopes, sinks, params, lengths, *tables)):
        raise NotImplementedError("a tensor of the call has an address that is not a multiple of 16 bytes")
    # Tensors that the call does not have are replaced by one of its own, which is not read.
    tensors = (
        q, k, v, q if mask is None else mask, q if slopes is None else slopes, q if sinks is None else sinks,
        q if recipe.constants.parameters == 0 else params, q if lengths is None else lengths, *tables, out, out if lse is None else lse, partial, stats,
    )  # fmt: skip
    if device >= 0 and key not in launching._READY:
        _ensure_compiled(_Compilation(key, tuple(tensor.dtype for tensor in tensors), len(integers), recipe))
    launching._launch(key, programs, splits, tensors, (*integers, sm_scale, soft_cap), lambda: recipe)
    if splits > 1:
        whole = (partial, stats, out, out if lse is None else lse)

        def joining() -> Any:
            return launching._Recipe(_paged_kernels.combine, (return_lse, splits, recipe.constants.v_block), 4)

        joined = ("combine", value_dim, return_lse, splits, q.dtype, device)
        launching._launch(joined, out.numel() // value_dim, 1, whole, (value_dim,), joining)
    return (out, lse) if return_lse else out


def prefill(
    q: Any, k: Any, v: Any, mask: Any = None, alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None, score_params: Any = None, *,
    causal: bool, causal_offset: int, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """Whole sequences."""
    expression = expression_of(score_mod, 0 if score_params is None else score_params.shape[-1])
    return attend(
        q, k, v, mask, alibi_slopes, sinks, expression, score_params, None, causal=causal, offset=causal_offset, window_left=window_left,
        window_right=window_right, soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse, heads_first=layout == "BHSD",
    )  # fmt: skip


def decode(
    q: Any, k: Any, v: Any, kv_lens: Any = None, alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None, score_params: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str,
) -> Any:  # fmt: skip
    """One query per row, at the position of its last key."""
    expression = expression_of(score_mod, 0 if score_params is None else score_params.shape[-1])
    heads_first = layout == "BHSD"
    return attend(
        q, k, v, None, alibi_slopes, sinks, expression, score_params, kv_lens, causal=False, offset=k.shape[2 if heads_first else 1] - 1,
        window_left=window_left, window_right=-1, soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse, heads_first=heads_first,
    )  # fmt: skip


def prefill_ragged(
    q: Any, k: Any, v: Any, qo_indptr: Any, kv_indptr: Any, alibi_slopes: Any = None, sinks: Any = None, score_mod: Any = None,
    score_params: Any = None, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool,
) -> Any:  # fmt: skip
    """Requests concatenated without padding."""
    expression = expression_of(score_mod, 0 if score_params is None else score_params.shape[-1])
    return attend(
        q, k, v, None, alibi_slopes, sinks, expression, score_params, None, causal=causal, offset=0, window_left=window_left, window_right=window_right,
        soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse, heads_first=False, requests=_Requests(qo_indptr, kv_indptr),
    )  # fmt: skip


def prefill_paged(
    q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None,
    sinks: Any = None, score_mod: Any = None, score_params: Any = None, *,
    causal: bool, window_left: int, window_right: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str, k_scale: Any = None,
    v_scale: Any = None,
) -> Any:  # fmt: skip
    """Requests whose keys are in pages."""
    expression = expression_of(score_mod, 0 if score_params is None else score_params.shape[-1])
    return attend(
        q, k_cache, v_cache, None, alibi_slopes, sinks, expression, score_params, None, causal=causal, offset=0, window_left=window_left,
        window_right=window_right, soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse, heads_first=layout == "HND",
        requests=_Requests(qo_indptr, kv_indptr, kv_indices, kv_last_page_len, k_scale, v_scale),
    )  # fmt: skip


def decode_paged(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None, sinks: Any = None,
    score_mod: Any = None, score_params: Any = None, *,
    window_left: int, soft_cap: float, sm_scale: float, return_lse: bool, layout: str, k_scale: Any = None, v_scale: Any = None,
) -> Any:  # fmt: skip
    """One query for each request, at the position of its last key, over pages."""
    expression = expression_of(score_mod, 0 if score_params is None else score_params.shape[-1])
    return attend(
        q, k_cache, v_cache, None, alibi_slopes, sinks, expression, score_params, None, causal=False, offset=0, window_left=window_left,
        window_right=-1, soft_cap=soft_cap, sm_scale=sm_scale, return_lse=return_lse, heads_first=layout == "HND",
        requests=_Requests(None, kv_indptr, kv_indices, kv_last_page_len, k_scale, v_scale),
    )  # fmt: skip


def prefill_paged_fp8(
    q: Any, k_cache: Any, v_cache: Any, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None,
    sinks: Any = None, k_scale: Any = None, v_scale: Any = None, score_mod: Any = None, score_params: Any = None, **params: Any,
) -> Any:  # fmt: skip
    """Requests whose keys are FP8 codes in pages."""
    tables = (qo_indptr, kv_indptr, kv_indices, kv_last_page_len)
    return prefill_paged(q, k_cache, v_cache, *tables, alibi_slopes, sinks, score_mod, score_params, k_scale=k_scale, v_scale=v_scale, **params)


def decode_paged_fp8(
    q: Any, k_cache: Any, v_cache: Any, kv_indptr: Any, kv_indices: Any, kv_last_page_len: Any, alibi_slopes: Any = None, sinks: Any = None,
    k_scale: Any = None, v_scale: Any = None, score_mod: Any = None, score_params: Any = None, **params: Any,
) -> Any:  # fmt: skip
    """One query for each request, over FP8 codes in pages."""
    tables = (kv_indptr, kv_indices, kv_last_page_len)
    return decode_paged(q, k_cache, v_cache, *tables, alibi_slopes, sinks, score_mod, score_params, k_scale=k_scale, v_scale=v_scale, **params)
