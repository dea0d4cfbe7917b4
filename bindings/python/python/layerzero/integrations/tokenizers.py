"""Fast tokenizers of Transformers with LayerZero underneath: the same objects and the same results, encoded
by the fastest kernel that was verified against the definition.

`wrap` changes one tokenizer, `install` all of them, including those created later; ``LAYERZERO_TOKENIZERS=1``
with ``import layerzero`` does the same. Calls with more than plain texts (pairs, words, overflow, masks of
special tokens) use the library's own code. Results are compared with the library's at a rate that falls with
the number of calls; a tokenizer whose results differ uses the library's code from then on.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.utils import PaddingStrategy

from layerzero import _native
from layerzero._tokenize import detokenize, tokenize

_LOG = logging.getLogger("layerzero")
_T = TypeVar("_T", bound=PreTrainedTokenizerFast)
_encode_plus: Callable[..., BatchEncoding] = PreTrainedTokenizerFast._encode_plus
_decode: Callable[..., str] = PreTrainedTokenizerFast._decode

# Arguments that plain texts do not need; a call with one of them uses the library's own code.
_UNSUPPORTED = (
    "text_pair",
    "is_split_into_words",
    "return_overflowing_tokens",
    "return_special_tokens_mask",
    "return_offsets_mapping",
    "stride",
)
# All known arguments; a call with any other one uses the library's own code.
_KNOWN_ARGUMENTS = {
    *_UNSUPPORTED,
    "add_special_tokens",
    "max_length",
    "pad_to_multiple_of",
    "padding_side",
    "padding_strategy",
    "return_attention_mask",
    "return_length",
    "return_tensors",
    "return_token_type_ids",
    "split_special_tokens",
    "truncation_strategy",
    "verbose",
}
# Attributes of models, which can be changed in place.
_MODEL_SETTINGS = (
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "max_input_chars_per_word",
    "alpha",
    "nbest_size",
)
# Number of sampled tokens whose text and encoding are part of the fingerprint.
_SAMPLED_IDS = 32


class _State:
    """The state of one tokenizer: its definition, until it changes, and the number of calls."""

    def __init__(self) -> None:
        self.key: Any = None
        self.tokenizer: _native.Tokenizer | None = None
        self.plain_types = False
        self.calls = 0
        self.differs = False
        self.lock = threading.Lock()

    def __reduce__(self) -> tuple[type[_State], tuple[()]]:
        """A copy of a tokenizer has its own state."""
        return _State, ()


class _LazyEncodings(Sequence[Any]):
    """The library's own encodings, computed on first access."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._encodings: Any = None

    def _all(self) -> Any:
        if self._encodings is None:
            self._encodings = self._make()
        return self._encodings

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())


def _state(fast: Any) -> _State:
    state: _State | None = fast.__dict__.get("_layerzero")
    if state is None:
        state = fast.__dict__["_layerzero"] = _State()
    inner = fast._tokenizer
    key = _fingerprint(inner)
    if state.key != key:
        with state.lock:
            # Truncation and padding are arguments of a call here; the backend keeps those of the last call.
            definition = json.loads(inner.to_str()) | {"truncation": None, "padding": None}
            state.plain_types = '"type_id":1' not in json.dumps(_single(definition), separators=(",", ":"))
            state.differs = False
            state.tokenizer = _read(definition)
            state.key = key
    return state


def _read(definition: dict[str, Any]) -> _native.Tokenizer | None:
    """The definition as a tokenizer; `None` if LayerZero does not support it, such as one with dropout."""
    try:
        return _native.Tokenizer.from_json(json.dumps(definition))
    except ValueError as error:
        _LOG.warning("this tokenizer uses its library's own code: %s", error)
        return None


def _fingerprint(inner: Any) -> tuple[Any, ...]:
    """A fingerprint that changes when the tokens of a backend tokenizer change: all parts except the model's
    tables, which are large. Of those, a sample of the vocabulary, and the encoding of each sampled token,
    which depends on its merges."""
    model, size = inner.model, inner.get_vocab_size()
    parts = (inner.normalizer, inner.pre_tokenizer, inner.post_processor, inner.decoder)
    sample = tuple(map(inner.id_to_token, range(0, size, max(size // _SAMPLED_IDS, 1))))
    settings = tuple(getattr(model, name, None) for name in _MODEL_SETTINGS)
    random = any(getattr(model, name, None) for name in ("dropout", "nbest_size"))
    return (
        id(inner),
        size,
        inner.get_vocab_size(False),
        tuple(part and part.__getstate__() for part in parts),
        repr(inner.get_added_tokens_decoder()),
        type(model),
        settings,
        sample,
        None if random else _pieces(model, sample),
    )


def _pieces(model: Any, texts: tuple[str | None, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(token.id for text in texts if text for token in model.tokenize(text))
    except Exception:
        # A model without an unknown token fails on unknown text, and will do so again.
        return None


def _single(definition: dict[str, Any]) -> Any:
    """The post-processor's template for a single text."""
    processor = definition.get("post_processor") or {}
    parts = processor.get("processors", [processor])
    return [part.get("single") for part in parts]


def _is_validated(call: int) -> bool:
    """Whether a call is compared with the library: 10 % of the first 100 calls, 1 % of the next 1000, 0.1 % of the rest."""
    return call % (10 if call < 100 else 100 if call < 1100 else 1000) == 0


def encode_plus(self: Any, text: Any, text_pair: Any = None, **given: Any) -> BatchEncoding:
    """Encodes with LayerZero if it supports the call, otherwise with the library's own code."""

    def own() -> BatchEncoding:
        return _encode_plus(self, text, text_pair, **given)

    batched = isinstance(text, (list, tuple))
    texts = list(text) if batched else [text]
    unsupported = text_pair is not None or any(given.get(name) for name in _UNSUPPORTED) or not _KNOWN_ARGUMENTS.issuperset(given)
    if unsupported or not texts or not all(isinstance(one, str) for one in texts):
        return own()
    split = given.get("split_special_tokens")
    split = self.split_special_tokens if split is None else split
    state = _state(self)
    types = given.get("return_token_type_ids")
    types = "token_type_ids" in self.model_input_names if types is None else types
    if state.differs or state.tokenizer is None or (types and not state.plain_types):
        return own()
    special = given.get("add_special_tokens", True)
    rows = tokenize(texts, state.tokenizer, add_special_tokens=special, split_special_tokens=bool(split))
    result = _assemble(self, rows, batched, types, own, given)
    if result is None:
        return own()
    call, state.calls = state.calls, state.calls + 1
    if _is_validated(call):
        plain = {**given, "return_tensors": None, "padding_strategy": PaddingStrategy.DO_NOT_PAD}
        expected = _encode_plus(self, text, text_pair, **plain)["input_ids"]
        if expected != (rows if batched else rows[0]):
            state.differs = True
            _LOG.warning("%s encodes differently than its definition; it uses its library's own code from now on", type(self).__name__)
            return own()
    return result


def _assemble(
    self: Any, rows: list[list[int]], batched: bool, types: bool, own: Callable[[], Any], given: dict[str, Any]
) -> BatchEncoding | None:
    """Pads the rows as requested; `None` if a row is too long and would have to be truncated."""
    truncation = str(getattr(given.get("truncation_strategy"), "value", "do_not_truncate"))
    longest = given.get("max_length")
    if truncation != "do_not_truncate" and longest is not None and any(len(row) > longest for row in rows):
        return None
    padding = str(getattr(given.get("padding_strategy"), "value", "do_not_pad"))
    length = max(len(row) for row in rows)
    if padding == "max_length":
        length = max(length, longest or self.model_max_length)
    multiple = given.get("pad_to_multiple_of")
    if multiple:
        length = -(-length // multiple) * multiple
    if padding != "do_not_pad" and (self.pad_token_id is None or any(len(row) > length for row in rows)):
        return None
    side = given.get("padding_side") or self.padding_side
    masks = [[1] * len(row) for row in rows]
    kinds = [[0] * len(row) for row in rows]

    def padded(all_rows: list[list[int]], value: int) -> list[list[int]]:
        if padding == "do_not_pad":
            return all_rows
        fill = [[value] * (length - len(row)) for row in all_rows]
        return [row + more if side == "right" else more + row for row, more in zip(all_rows, fill, strict=True)]

    wants_mask = given.get("return_attention_mask")
    wants_mask = "attention_mask" in self.model_input_names if wants_mask is None else wants_mask
    data: dict[str, Any] = {"input_ids": padded(rows, self.pad_token_id)}
    if types:
        data["token_type_ids"] = padded(kinds, self.pad_token_type_id)
    if wants_mask:
        data["attention_mask"] = padded(masks, 0)
    if given.get("return_length"):
        data["length"] = [len(row) for row in data["input_ids"]]
    for row in data["input_ids"]:
        self._eventual_warn_about_too_long_sequence(row, longest, given.get("verbose", True))
    tensors = given.get("return_tensors")
    encodings: Any = _LazyEncodings(lambda: own().encodings)
    if not batched and tensors is None:
        data = {name: value[0] if isinstance(value[0], list) else value for name, value in data.items()}
    return BatchEncoding(data, encodings, tensor_type=tensors)


def decode(self: Any, token_ids: Any, skip_special_tokens: bool = False, *arguments: Any, **given: Any) -> str:
    """Decodes with LayerZero, unless spaces must be cleaned up."""
    supported = len(arguments) <= 1 and given.keys() <= {"clean_up_tokenization_spaces"}
    clean = arguments[0] if arguments else given.get("clean_up_tokenization_spaces")
    clean = self.clean_up_tokenization_spaces if clean is None else clean
    ids = [token_ids] if isinstance(token_ids, int) else token_ids
    plain = isinstance(ids, list) and all(isinstance(one, int) and 0 <= one < 1 << 31 for one in ids)
    state = _state(self) if plain and supported and not clean else None
    if state is None or state.differs or state.tokenizer is None:
        return _decode(self, token_ids, skip_special_tokens, *arguments, **given)
    text: str = detokenize([ids], state.tokenizer, skip_special_tokens=skip_special_tokens)[0]
    return text


def wrap(tokenizer: _T) -> _T:
    """Makes one fast tokenizer use LayerZero; it stays an instance of its class."""
    own = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TypeError(f"{own.__name__} is not a fast tokenizer of Transformers")
    if getattr(own, "_encode_plus", None) is not encode_plus:

        def reduce(self: Any) -> tuple[Callable[..., Any], tuple[Any]]:
            """Copied and pickled as a tokenizer of its own class, which is wrapped again."""
            plain = object.__new__(own)
            vars(plain).update(vars(self))
            return wrap, (plain,)

        members = {"_encode_plus": encode_plus, "_decode": decode, "__reduce__": reduce, "__module__": own.__module__}
        tokenizer.__class__ = type(own.__name__, (own,), members)
    return tokenizer


def install() -> None:
    """Makes every fast tokenizer of this process use LayerZero."""
    PreTrainedTokenizerFast._encode_plus = encode_plus
    PreTrainedTokenizerFast._decode = decode


def uninstall() -> None:
    """Undoes `install`."""
    PreTrainedTokenizerFast._encode_plus = _encode_plus
    PreTrainedTokenizerFast._decode = _decode
