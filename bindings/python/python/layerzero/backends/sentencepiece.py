"""The `sentencepiece` package as a kernel, for tokenizers created from a SentencePiece model."""

from __future__ import annotations

from typing import Any

import sentencepiece

from layerzero._sentencepiece import model_of
from layerzero.backends import _texts

_PROCESSORS: dict[str, Any] = {}


def _processor(tokenizer: Any) -> Any:
    processor = _PROCESSORS.get(tokenizer.digest)
    if processor is None:
        model = model_of(tokenizer)
        if model is None:
            raise NotImplementedError("this tokenizer was not created from a SentencePiece model")
        processor = _PROCESSORS[tokenizer.digest] = sentencepiece.SentencePieceProcessor(model_proto=model)
    return processor


def _encode(texts: Any, tokenizer: Any, *, add_special_tokens: bool, return_offsets: bool) -> Any:
    if return_offsets:
        raise NotImplementedError("sentencepiece reports no offsets into the text before normalization")
    processor = _processor(tokenizer)
    batch = [texts] if isinstance(texts, str) else list(texts)
    _texts.verify("sentencepiece", tokenizer, processor.encode)
    return _texts.flat(((row, None) for row in processor.encode(batch)), False)


KERNELS = {"sentencepiece.encode": _encode}
