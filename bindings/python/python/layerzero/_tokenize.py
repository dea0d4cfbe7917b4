"""Tokenizing and detokenizing. Tokenizer names are resolved here; the engine selects the kernel."""

from __future__ import annotations

import array
import os
from collections.abc import Sequence
from typing import Any

from layerzero import _native, _sentencepiece, _tiktoken, ops
from layerzero._token_cache import TokenCache

# Tokenizers by registered name, by encoding, or by file with its modification time and size.
_RESOLVED: dict[Any, _native.Tokenizer] = {}
_REGISTERED: dict[str, _native.Tokenizer] = {}
_CACHE = TokenCache()


def tokenizer_cache() -> TokenCache:
    """The token cache: its size, its counters, and `clear`."""
    return _CACHE


def register_tokenizer(name: str, tokenizer: Any) -> _native.Tokenizer:
    """Registers a tokenizer under a name: anything that `tokenize` takes, or an object of another library.

    Objects of `tokenizers`, `transformers` (fast tokenizers), `tiktoken` and `sentencepiece` are converted from their
    definition; they are not called.
    """
    resolved = resolve(tokenizer)
    _REGISTERED[name] = resolved
    return resolved


def resolve(tokenizer: Any) -> _native.Tokenizer:
    """Resolves a tokenizer: a `Tokenizer`, a registered name, a tiktoken encoding, a file, a folder, or an object."""
    if isinstance(tokenizer, _native.Tokenizer):
        return tokenizer
    if isinstance(tokenizer, (str, os.PathLike)):
        name = os.fspath(tokenizer)
        if name in _REGISTERED:
            return _REGISTERED[name]
        if name in _native.encoding_names() and not os.path.exists(name):
            if name not in _RESOLVED:
                _RESOLVED[name] = _native.tokenizer_of_encoding(name)
            return _RESOLVED[name]
        return _from_path(name)
    return _from_object(tokenizer)


def _from_path(name: str) -> _native.Tokenizer:
    path = os.path.abspath(name)
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    try:
        status = os.stat(path)
    except OSError as error:
        encodings = ", ".join(_native.encoding_names())
        message = f"unknown tokenizer {name!r}: it is not a file, a registered tokenizer or an encoding ({encodings})"
        raise ValueError(message) from error
    # A rewritten file is another tokenizer, so its modification time and size are part of the key.
    key = (path, status.st_mtime_ns, status.st_size)
    known = _RESOLVED.get(key)
    if known is None:
        if path.endswith((".json", ".model")):
            known = _native.Tokenizer.from_file(path)
        else:
            with open(path, "rb") as file:
                known = _sentencepiece.tokenizer_of(file.read())
        _RESOLVED[key] = known
    return known


def _from_object(tokenizer: Any) -> _native.Tokenizer:
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if callable(getattr(inner, "to_str", None)):
        # Transformers sets truncation and padding for each call, and leaves the last ones set.
        read = _native.Tokenizer.from_json(inner.to_str(), whole_texts=inner is not tokenizer)
        splits = getattr(tokenizer, "split_special_tokens", getattr(inner, "encode_special_tokens", False))
        return read.splitting_special_tokens() if splits else read
    if callable(getattr(tokenizer, "serialized_model_proto", None)):
        return _sentencepiece.tokenizer_of_processor(tokenizer)
    if hasattr(tokenizer, "encode_ordinary") and hasattr(tokenizer, "_mergeable_ranks"):
        return _tiktoken.tokenizer_of(tokenizer)
    expected = "a path, the name of an encoding or of a registered tokenizer, or an object with a definition"
    raise TypeError(f"a tokenizer must be {expected}, not {type(tokenizer).__name__}")


def tokenize(
    texts: str | Sequence[str],
    tokenizer_id: Any,
    *,
    add_special_tokens: bool = True,
    return_offsets: bool = False,
    split_special_tokens: bool = False,
    model_id: str = "",
) -> Any:
    """Token ids of texts: one list for one text, a list of lists for several.

    `tokenizer_id` is a path to a ``tokenizer.json`` or a SentencePiece ``.model``, the name of a tiktoken
    encoding (whose ranks are compiled in), a name given to `register_tokenizer`, a `Tokenizer`, or an object
    of another library. With `return_offsets`, the byte ranges of the tokens are returned as a second result.
    With `split_special_tokens`, special tokens in a text are encoded as plain text: set it for untrusted
    text. Short texts are cached, keyed by the tokenizer's digest and by `model_id`.
    """
    tokenizer = resolve(tokenizer_id)
    if split_special_tokens:
        tokenizer = tokenizer.splitting_special_tokens()
    single = isinstance(texts, str)
    batch: list[str] = [texts] if isinstance(texts, str) else list(texts)
    space = _CACHE.space(model_id, tokenizer.digest, add_special_tokens, return_offsets)

    def encode(missing: list[str]) -> list[Any]:
        return _encode(missing, tokenizer, add_special_tokens, return_offsets)

    rows = _CACHE.serve(space, batch, encode)
    if return_offsets:
        ids, offsets = [row[0] for row in rows], [row[1] for row in rows]
        return (ids[0], offsets[0]) if single else (ids, offsets)
    return rows[0] if single else rows


def _encode(texts: list[str], tokenizer: _native.Tokenizer, special: bool, offsets: bool) -> list[Any]:
    results: Any = ops.tokenize_encode(texts, tokenizer, add_special_tokens=special, return_offsets=offsets)
    bounds = _listed(results[1])
    parts = []
    for flat in (results[0], results[2]) if offsets else (results[0],):
        values = _listed(flat)
        parts.append([values[start:end] for start, end in zip(bounds, bounds[1:], strict=False)])
    return list(zip(*parts, strict=True)) if offsets else parts[0]


def _listed(values: Any) -> list[Any]:
    listed: list[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
    return listed


def detokenize(
    tokens: Sequence[int] | Sequence[Sequence[int]],
    tokenizer_id: Any,
    *,
    skip_special_tokens: bool = True,
) -> Any:
    """Texts of token ids: one string for one list of ids, a list of strings for several."""
    ids: list[Any] = [one.tolist() if hasattr(one, "tolist") else one for one in tokens]
    several = bool(ids) and not isinstance(ids[0], int)
    rows: list[list[int]] = [list(row) for row in ids] if several else [ids]
    indptr = array.array("q", [0])
    for row in rows:
        indptr.append(indptr[-1] + len(row))
    flat: Any = array.array("i", [token for row in rows for token in row])
    if not flat:
        # A buffer of 0 bytes has no address that the engine could use.
        return [""] * len(rows) if several else ""
    bounds: Any = indptr
    texts = ops.tokenize_decode(flat, bounds, resolve(tokenizer_id), skip_special_tokens=skip_special_tokens)
    return texts if several else texts[0]
