"""The `sentencepiece` package as a kernel, for tokenizers that were made from one of its models."""

from __future__ import annotations

from typing import Any

import sentencepiece

from layerzero._sentencepiece import model_of
from layerzero.backends import _texts

_BUILT: dict[str, Any] = {}


def _built(tokenizer: Any) -> Any:
    built = _BUILT.get(tokenizer.digest)
    if built is None:
        model = model_of(tokenizer)
        if model is None:
            raise NotImplementedError("this tokenizer was not made from a SentencePiece model")
        built = _BUILT[tokenizer.digest] = sentencepiece.SentencePieceProcessor(model_proto=model)
    return built


def _encode(texts: Any, tokenizer: Any, *, add_special_tokens: bool, return_offsets: bool) -> Any:
    if return_offsets:
        raise NotImplementedError("sentencepiece gives no offsets before normalisation")
    built = _built(tokenizer)
    batch = [texts] if isinstance(texts, str) else list(texts)
    _texts.prove("sentencepiece", tokenizer, built.encode)
    return _texts.flat(((row, None) for row in built.encode(batch)), False)


KERNELS = {"sentencepiece.encode": _encode}
