"""tiktoken encodings as tokenizers: identified by ranks, special tokens and pattern, never by name alone."""

from __future__ import annotations

import weakref
from typing import Any

from layerzero import _native

# An encoding is immutable.
_CACHE: weakref.WeakKeyDictionary[Any, _native.Tokenizer] = weakref.WeakKeyDictionary()
# Texts on which different pretokenizers and merges give different tokens.
_PROBES = (
    "The quick brown fox isn't jumping over 12345 lazy dogs. WE'LL see\u2026 don't can'T",
    "  leading,   inner\tand trailing spaces \n\n new\r\nlines  \n ",
    "Stra\u00dfe \u03a9mega \u0401\u041b\u041a\u0410 \u6771\u4eac\u30bf\u30ef\u30fc \ud55c\uad6d\uc5b4 \u0928\u092e\u0938\u094d\u0924\u0947 \U0001f469\u200d\U0001f680 e\u0301 \ufb01 \u00bd \u2460",
    "aaaaaaaaaaaaaaaaaaa bbbbb ababababab ........... ------- 000000 \x00\x01\x7f",
)


def tokenizer_of(encoding: Any) -> _native.Tokenizer:
    """The tokenizer of a ``tiktoken.Encoding``; refused if it does not give the tokens of the object."""
    known = _CACHE.get(encoding)
    if known is None:
        ranks, special = encoding._mergeable_ranks, encoding._special_tokens
        known = _native.tokenizer_of_ranks(list(ranks.items()), list(special.items()), encoding._pat_str)
        for text in (*_PROBES, *(f"a{token} b{token}{token}c" for token in list(special)[:8])):
            found, expected = _native.defined_tokens(known, text), encoding.encode(text, allowed_special="all")
            if found != expected:
                message = f"{encoding!r} encodes {text[:24]!r} as {expected[:8]}, but the tokenizer built from its ranks as {found[:8]}"
                raise ValueError(f"{message}: call the encoding itself")
        _CACHE[encoding] = known
    return known
