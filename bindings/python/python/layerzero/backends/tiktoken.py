"""The `tiktoken` package as a kernel, for byte-level BPE whose ids are its ranks. Encodings are built from
the definition, because named encodings would be downloaded.
"""

from __future__ import annotations

import json
from typing import Any

import tiktoken

from layerzero import _native
from layerzero.backends import _texts

_ENCODINGS: dict[str, Any] = {}


def _alphabet() -> dict[str, int]:
    """The byte of each character of byte-level vocabularies."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    characters = {chr(byte): byte for byte in visible}
    return characters | {chr(256 + number): byte for number, byte in enumerate(hidden)}


def _build(definition: dict[str, Any]) -> Any:
    model, pretokenizer = definition["model"], definition.get("pre_tokenizer") or {}
    parts = pretokenizer.get("pretokenizers", [])
    fits = model.get("type") == "BPE" and definition.get("normalizer") is None and len(parts) == 2
    if not fits or parts[0].get("type") != "Split" or definition.get("post_processor"):
        raise NotImplementedError("tiktoken requires byte-level BPE with one pretokenizer pattern, no normalizer and no post-processor")
    alphabet = _alphabet()
    special = {token["content"]: token["id"] for token in definition.get("added_tokens", [])}
    plain = ((token, id) for token, id in model["vocab"].items() if token not in special)
    ranks = {bytes(alphabet[character] for character in token): id for token, id in plain}
    encoding = tiktoken.Encoding(
        "layerzero", pat_str=parts[0]["pattern"]["Regex"], mergeable_ranks=ranks, special_tokens=special
    )
    allowed: Any = set() if definition.get("split_special_tokens") else "all"
    return encoding, {"allowed_special": allowed, "disallowed_special": ()}


def _encode(texts: Any, tokenizer: Any, *, add_special_tokens: bool, return_offsets: bool) -> Any:
    if return_offsets:
        raise NotImplementedError("tiktoken reports no offsets")
    built = _ENCODINGS.get(tokenizer.digest)
    if built is None:
        try:
            built = _build(json.loads(_native.tokenizer_json(tokenizer)))
        except (KeyError, ValueError) as error:
            raise NotImplementedError(f"tiktoken cannot represent this tokenizer: {error}") from error
        _ENCODINGS[tokenizer.digest] = built
    batch = [texts] if isinstance(texts, str) else list(texts)
    encoding, options = built
    _texts.verify("tiktoken", tokenizer, lambda text: encoding.encode(text, **options))
    return _texts.flat(((row, None) for row in encoding.encode_batch(batch, **options)), False)


KERNELS = {"tiktoken.encode": _encode}
