"""Tokenizing and detokenizing. Tokenizer names are resolved here; the engine selects the kernel."""

from __future__ import annotations

import array
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from layerzero import _native, _sentencepiece, _tiktoken, ops
from layerzero._numbers import whole
from layerzero._token_cache import TokenCache

# Tokenizers by registered name, by encoding, or by file with its modification time and size.
_RESOLVED: dict[Any, _native.Tokenizer] = {}
_REGISTERED: dict[str, _native.Tokenizer] = {}
_CACHE = TokenCache()
# The files of a folder that define a tokenizer, best first.
_FILES = ("tokenizer.json", "tekken.json", "tokenizer.model", "vocab.txt")


class FlatTokens(NamedTuple):
    """The tokens of several texts in one array: those of text b are ``tokens[indptr[b]:indptr[b + 1]]``."""

    tokens: Any
    indptr: Any
    offsets: Any = None


class TokenBatch(NamedTuple):
    """Texts, or pairs of texts, as matrices with one row per text, or per window of a truncated text.

    The masks are 0 and 1: `attention_mask` is 0 for padding, `special_tokens_mask` is 1 for special tokens and padding.
    `sample` is the number of the text of each row. `offsets` is there if it was requested.
    """

    input_ids: Any
    attention_mask: Any
    token_type_ids: Any
    special_tokens_mask: Any
    sample: Any
    offsets: Any = None


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


def file_of(path: str | os.PathLike[str]) -> str:
    """The file of a tokenizer: the path itself, or the first known one in the folder."""
    name = os.fspath(path)
    if not os.path.isdir(name):
        return name
    found = [file for file in _FILES if os.path.exists(os.path.join(name, file))]
    if not found:
        raise ValueError(f"the folder {name!r} has no tokenizer: none of {', '.join(_FILES)}")
    return os.path.join(name, found[0])


def _from_path(name: str) -> _native.Tokenizer:
    path = file_of(os.path.abspath(name))
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
        known = _RESOLVED[key] = _native.Tokenizer.from_file(path)
    return known


def _from_object(tokenizer: Any) -> _native.Tokenizer:
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if callable(getattr(inner, "to_str", None)):
        # Transformers sets truncation and padding for each call, and leaves the last ones set.
        read = _native.Tokenizer.from_json(inner.to_str(), whole_texts=inner is not tokenizer)
        splits = getattr(tokenizer, "split_special_tokens", getattr(inner, "encode_special_tokens", False))
        made = read.splitting_special_tokens() if splits else read
        template = getattr(tokenizer, "chat_template", None)
        return with_chat_template(made, template, tokenizer.special_tokens_map) if template else made
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
    as_arrays: bool = False,
    model_id: str = "",
) -> Any:
    """Token ids of texts: one list for one text, a list of lists for several.

    `tokenizer_id` is a path to a file that `Tokenizer.from_file` loads, the name of a tiktoken encoding (whose
    ranks are compiled in), a name given to `register_tokenizer`, a `Tokenizer`, or an object of another
    library. With `return_offsets`, the byte ranges of the tokens are returned as a second result. With
    `split_special_tokens`, special tokens in a text are encoded as plain text: set it for untrusted text. With
    `as_arrays`, all ids are returned in one array (`FlatTokens`). Short texts are
    cached, keyed by the tokenizer's digest and by `model_id`; arrays are not.
    """
    tokenizer = _for_texts(tokenizer_id, split_special_tokens)
    if as_arrays:
        return FlatTokens(*_flat(texts, tokenizer, add_special_tokens, return_offsets))
    found = _CACHE.encode(_batch(texts), tokenizer, model_id, add_special_tokens, return_offsets)
    if not isinstance(texts, str):
        return found
    return (found[0][0], found[1][0]) if return_offsets else found[0]


def _for_texts(tokenizer_id: Any, split_special_tokens: bool) -> _native.Tokenizer:
    tokenizer = resolve(tokenizer_id)
    return tokenizer.splitting_special_tokens() if split_special_tokens else tokenizer


def _batch(texts: str | Sequence[str]) -> list[str]:
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        return [texts]
    return list(texts)


def _flat(texts: str | Sequence[str], tokenizer: _native.Tokenizer, special: bool, offsets: bool) -> tuple[Any, ...]:
    """Tokens, starts of rows and, if requested, offsets."""
    found: Any = ops.tokenize_encode(_batch(texts), tokenizer, add_special_tokens=special, return_offsets=offsets)
    return tuple(found)


def count_tokens(
    texts: str | Sequence[str],
    tokenizer_id: Any,
    *,
    add_special_tokens: bool = True,
    split_special_tokens: bool = False,
) -> Any:
    """The number of tokens of a text, or a list of them for several texts. No list of ids is made."""
    tokenizer = _for_texts(tokenizer_id, split_special_tokens)
    counts = _native.token_counts(_batch(texts), tokenizer, add_special_tokens)
    return counts[0] if isinstance(texts, str) else counts


def tokenize_batch(
    texts: str | Sequence[str],
    tokenizer_id: Any,
    pairs: str | Sequence[str] | None = None,
    *,
    add_special_tokens: bool = True,
    max_length: int | None = None,
    stride: int = 0,
    truncation: Literal["longest_first", "only_first", "only_second"] = "longest_first",
    truncation_side: Literal["left", "right"] = "right",
    return_overflow: bool = False,
    padding: Literal["longest", "max_length"] | int = "longest",
    pad_to_multiple_of: int = 1,
    padding_side: Literal["left", "right"] = "right",
    pad_id: int | str | None = None,
    return_offsets: bool = False,
    split_special_tokens: bool = False,
) -> TokenBatch:
    """Texts, or pairs of texts, as numpy matrices of ids and masks (`TokenBatch`).

    Rows longer than `max_length` are truncated; with `return_overflow` the rest becomes further rows, each of which repeats
    `stride` tokens of the one before. Shorter rows are padded with `pad_id` (an id, or a token of the tokenizer), which must
    be given if rows differ in length: to the longest row, to `max_length`, or to a given length. Special tokens and type ids
    are those of the definition's post-processor.
    """
    import numpy

    tokenizer = _for_texts(tokenizer_id, split_special_tokens)
    first = _flat(texts, tokenizer, False, return_offsets)
    second = None if pairs is None else _flat(pairs, tokenizer, False, return_offsets)
    rows, length, parts = _native.token_batch(
        tokenizer,
        first,
        second,
        special=add_special_tokens,
        max_length=None if max_length is None else whole("max_length", max_length, 0),
        stride=whole("stride", stride, 0),
        truncation=truncation,
        truncation_side=truncation_side,
        overflow=return_overflow,
        padding=padding if isinstance(padding, (bool, str)) else whole("padding", padding, 1),
        multiple_of=whole("pad_to_multiple_of", pad_to_multiple_of, 1),
        padding_side=padding_side,
        pad_id=pad_id if pad_id is None or isinstance(pad_id, str) else whole("pad_id", pad_id, 0, 2**31 - 1),
        offsets=return_offsets,
    )
    flat = [numpy.frombuffer(part, dtype=numpy.int64) for part in parts]
    ids, mask, types, special = (part.reshape(rows, length) for part in flat[:4])
    offsets = flat[4].reshape(rows, length, 2) if return_offsets else None
    return TokenBatch(ids, mask, types, special, flat[5], offsets)


def with_chat_template(
    tokenizer: _native.Tokenizer, chat_template: str | Mapping[str, str], special_tokens: Mapping[str, Any] | None
) -> _native.Tokenizer:
    """The tokenizer with chat templates: one, or several by name."""
    import json

    template = chat_template if isinstance(chat_template, str) else dict(chat_template)
    tokens = {name: str(token) for name, token in (special_tokens or {}).items() if not isinstance(token, (list, dict))}
    return _native.with_chat_config(tokenizer, json.dumps({**tokens, "chat_template": template}))


def apply_chat_template(
    messages: Sequence[Mapping[str, Any]],
    tokenizer_id: Any,
    *,
    tools: Sequence[Any] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template: str | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool | str = False,
    tokenize: bool = True,
    **variables: Any,
) -> Any:
    """The ids of a conversation, or with `tokenize=False` its text. Keywords are variables of the template.

    With `continue_final_message`, the text ends inside of the last message: at the end of its content, or of the field with that name.
    """
    import json

    tokenizer = resolve(tokenizer_id)
    given = {
        **variables,
        "messages": list(messages),
        "tools": None if tools is None else [_tool_schema(tool) for tool in tools],
        "documents": None if documents is None else list(documents),
        "add_generation_prompt": add_generation_prompt,
        "continue_final_message": continue_final_message,
    }
    text = _native.render_chat(tokenizer, json.dumps(given, ensure_ascii=False), chat_template)
    return _native.token_lists([text], tokenizer, False)[0] if tokenize else text


def _tool_schema(tool: Any) -> Any:
    if not callable(tool):
        return tool
    try:
        from transformers.utils import get_json_schema
    except ImportError as error:
        raise TypeError("a tool that is a function needs the package `transformers`; give its JSON schema instead") from error
    return get_json_schema(tool)


def detokenize(
    tokens: Sequence[int] | Sequence[Sequence[int]],
    tokenizer_id: Any,
    *,
    skip_special_tokens: bool = True,
) -> Any:
    """Texts of token ids: one string for one list of ids, a list of strings for several."""
    several, flat, bounds = _native.flat_ids(tokens)
    ids: Any = array.array("i", flat)
    indptr: Any = array.array("q", bounds)
    if not ids:
        # A buffer of 0 bytes has no address that the engine could use.
        return [""] * (len(indptr) - 1) if several else ""
    texts = ops.tokenize_decode(ids, indptr, resolve(tokenizer_id), skip_special_tokens=skip_special_tokens)
    return texts if several else texts[0]
