"""The `tokenizers` package as a kernel: the same definitions, read by the package."""

from __future__ import annotations

import json
from typing import Any

import tokenizers

from layerzero import _native
from layerzero.backends import _texts

_BUILT: dict[str, Any] = {}


def _built(tokenizer: Any) -> Any:
    built = _BUILT.get(tokenizer.digest)
    if built is None:
        text = _native.tokenizer_json(tokenizer).decode("utf-8")
        splits = '"split_special_tokens":true' in text
        if splits:
            # The package does not read this field; it has an attribute for it.
            definition = json.loads(text)
            splits = bool(definition.pop("split_special_tokens", False))
            text = json.dumps(definition)
        try:
            built = tokenizers.Tokenizer.from_str(text)
        except Exception as error:
            raise NotImplementedError(f"tokenizers cannot read this definition: {error}") from error
        built.encode_special_tokens = splits
        built.no_truncation()
        built.no_padding()
        _BUILT[tokenizer.digest] = built
    return built


def _encode(texts: Any, tokenizer: Any, *, add_special_tokens: bool, return_offsets: bool) -> Any:
    built = _built(tokenizer)
    batch = [texts] if isinstance(texts, str) else list(texts)
    _texts.verify("tokenizers", tokenizer, lambda text: built.encode(text).ids)
    encodings = built.encode_batch(batch, add_special_tokens=add_special_tokens)
    rows = (
        (encoding.ids, _texts.in_bytes(text, encoding.offsets) if return_offsets else None)
        for text, encoding in zip(batch, encodings, strict=True)
    )
    return _texts.flat(rows, return_offsets)


KERNELS = {"tokenizers.encode": _encode}
