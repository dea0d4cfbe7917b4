"""SentencePiece models: their JSON form, and a check for processor options that change tokens."""

from __future__ import annotations

import base64
from typing import Any

from layerzero import _native

# Texts that reveal options of a processor: BOS and EOS, reversed pieces, an empty text.
_PROBES = ("", "Hello  world. 12345 <s> ﬁ\n", "日本語 e\u0301")


def tokenizer_of(model: bytes) -> _native.Tokenizer:
    """The tokenizer of the content of a ``.model`` file."""
    import json

    proto = base64.b64encode(model).decode("ascii")
    return _native.Tokenizer.from_json(json.dumps({"model": {"type": "SentencePiece", "proto": proto}}))


def model_of(tokenizer: _native.Tokenizer) -> bytes | None:
    """The content of the ``.model`` file that a tokenizer was created from, if it was."""
    import json

    text = _native.tokenizer_json(tokenizer)
    if b'"SentencePiece"' not in text[:64]:
        return None
    model = json.loads(text)["model"]
    return base64.b64decode(model["proto"]) if model.get("type") == "SentencePiece" else None


def tokenizer_of_processor(processor: Any) -> _native.Tokenizer:
    """The tokenizer of a ``SentencePieceProcessor``; refused if options of the object change its tokens."""
    tokenizer = tokenizer_of(processor.serialized_model_proto())
    for text in _PROBES:
        expected = _native.defined_tokens(tokenizer, text)
        found = [list(processor.encode(text)) for _ in range(2)]
        if found != [expected, expected]:
            raise ValueError(
                f"this {type(processor).__name__} encodes {text!r} as {found[0]}, but its model as {expected}: options such as "
                "add_bos, add_eos, reverse, enable_sampling or out_type=str are set; pass a processor without them"
            )
    return tokenizer
