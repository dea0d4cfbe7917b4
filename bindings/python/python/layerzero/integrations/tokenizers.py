"""Transformers' fast tokenizers with LayerZero underneath: the same objects and the same answers, encoded by the fastest kernel
that is proven equal.

`wrap` turns one tokenizer, `install` every one, also those that are made later; ``LAYERZERO_TOKENIZERS=1`` with ``import
layerzero`` does the same. What a call asks for beyond plain texts (pairs, words, overflow, masks of special tokens) goes the
library's own way. Results are held against the library's own, the more rarely the longer they agree; a tokenizer that ever
differs is left alone from then on.
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

# Arguments of a call that plain texts do without.
_OWN_WAY = (
    "text_pair",
    "is_split_into_words",
    "return_overflowing_tokens",
    "return_special_tokens_mask",
    "return_offsets_mapping",
    "stride",
)
# Arguments that are understood here; a call with any other one goes the library's own way.
_UNDERSTOOD = {
    *_OWN_WAY,
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
# Settings of models, which can be changed in place.
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
# Of the tokens of a model, so many are compared at each call, and what the model makes of their text.
_SAMPLED_IDS = 32


class _State:
    """What is known of one tokenizer: its definition, as long as it does not change, and how often it was tried."""

    def __init__(self) -> None:
        self.key: Any = None
        self.tokenizer: _native.Tokenizer | None = None
        self.plain_types = False
        self.calls = 0
        self.differs = False
        self.lock = threading.Lock()


class _Later(Sequence[Any]):
    """The library's own encodings, made when somebody asks for one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None

    def _all(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made

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
            # Truncation and padding are arguments of a call here; the backend keeps those of the last one.
            definition = json.loads(inner.to_str()) | {"truncation": None, "padding": None}
            state.plain_types = '"type_id":1' not in json.dumps(_single(definition), separators=(",", ":"))
            state.differs = False
            state.tokenizer = _read(definition)
            state.key = key
    return state


def _read(definition: dict[str, Any]) -> _native.Tokenizer | None:
    """The definition as a tokenizer; `None` for one that LayerZero refuses, such as one with dropout."""
    try:
        return _native.Tokenizer.from_json(json.dumps(definition))
    except ValueError as error:
        _LOG.warning("this tokenizer is left to its library: %s", error)
        return None


def _fingerprint(inner: Any) -> tuple[Any, ...]:
    """What changes when the tokens of a backend tokenizer change: every part but the model's tables as a whole, which are large.
    Of those, a sample of the vocabulary, and the pieces of each sampled token, which all of its merges take part in."""
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
        # A model without a token for what is unknown fails on it, and so it will again.
        return None


def _single(definition: dict[str, Any]) -> Any:
    """What the post-processor does to one text."""
    processor = definition.get("post_processor") or {}
    parts = processor.get("processors", [processor])
    return [part.get("single") for part in parts]


def _tries(call: int) -> bool:
    """A tenth of the first hundred calls, a hundredth of the next thousand, a thousandth of the rest."""
    return call % (10 if call < 100 else 100 if call < 1100 else 1000) == 0


def encode_plus(self: Any, text: Any, text_pair: Any = None, **given: Any) -> BatchEncoding:
    """Encodes by LayerZero what it can, and the rest as ever."""

    def own() -> BatchEncoding:
        return _encode_plus(self, text, text_pair, **given)

    batched = isinstance(text, (list, tuple))
    texts = list(text) if batched else [text]
    odd = text_pair is not None or any(given.get(name) for name in _OWN_WAY) or not _UNDERSTOOD.issuperset(given)
    if odd or not texts or not all(isinstance(one, str) for one in texts):
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
    if _tries(call):
        plainly = {**given, "return_tensors": None, "padding_strategy": PaddingStrategy.DO_NOT_PAD}
        wanted = _encode_plus(self, text, text_pair, **plainly)["input_ids"]
        if wanted != (rows if batched else rows[0]):
            state.differs = True
            _LOG.warning("%s encodes otherwise than its definition says; it is left alone", type(self).__name__)
            return own()
    return result


def _assemble(
    self: Any, rows: list[list[int]], batched: bool, types: bool, own: Callable[[], Any], given: dict[str, Any]
) -> BatchEncoding | None:
    """Rows padded as asked for; `None` where something is too long and would have to be cut."""
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
    later: Any = _Later(lambda: own().encodings)
    if not batched and tensors is None:
        data = {name: value[0] if isinstance(value[0], list) else value for name, value in data.items()}
    return BatchEncoding(data, later, tensor_type=tensors)


def decode(self: Any, token_ids: Any, skip_special_tokens: bool = False, *arguments: Any, **given: Any) -> str:
    """Decodes by LayerZero, unless spaces are to be cleaned up as well."""
    understood = len(arguments) <= 1 and given.keys() <= {"clean_up_tokenization_spaces"}
    clean = arguments[0] if arguments else given.get("clean_up_tokenization_spaces")
    clean = self.clean_up_tokenization_spaces if clean is None else clean
    ids = [token_ids] if isinstance(token_ids, int) else token_ids
    plain = isinstance(ids, list) and all(isinstance(one, int) and 0 <= one < 1 << 31 for one in ids)
    state = _state(self) if plain and understood and not clean else None
    if state is None or state.differs or state.tokenizer is None:
        return _decode(self, token_ids, skip_special_tokens, *arguments, **given)
    text: str = detokenize([ids], state.tokenizer, skip_special_tokens=skip_special_tokens)[0]
    return text


def wrap(tokenizer: _T) -> _T:
    """Has one fast tokenizer use LayerZero; it stays an instance of its class."""
    own = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TypeError(f"{own.__name__} is no fast tokenizer of Transformers")
    if getattr(own, "_encode_plus", None) is not encode_plus:
        members = {"_encode_plus": encode_plus, "_decode": decode, "__module__": own.__module__}
        tokenizer.__class__ = type(own.__name__, (own,), members)
    return tokenizer


def install() -> None:
    """Has every fast tokenizer of this process use LayerZero."""
    PreTrainedTokenizerFast._encode_plus = encode_plus
    PreTrainedTokenizerFast._decode = decode


def uninstall() -> None:
    """Takes `install` back."""
    PreTrainedTokenizerFast._encode_plus = _encode_plus
    PreTrainedTokenizerFast._decode = _decode
