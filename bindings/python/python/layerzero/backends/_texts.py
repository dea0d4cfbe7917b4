"""Shared by tokenizer adapters: flat arrays, byte offsets, and the check of a library against the definition."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable
from typing import Any

from layerzero import _native

# Texts on which libraries with different behavior give different tokens.
PROBES = (
    "",
    "The quick brown fox isn't jumping over 12345 lazy dogs. WE'LL see…",
    "  leading,   inner\tand trailing spaces \n\n new\r\nlines  ",
    "Straße größer Ωmega ЁЛКА 東京タワー 한국어 नमस्ते 👩‍🚀👍🏽 e\u0301 ﬁ ½ ①",
    "def f(x):\n    return {'a': x[0] != 0x1F}  # <|endoftext|> <s>\n",
)

Encode = Callable[[str], list[int]]
_VERIFIED: dict[tuple[str, str], bool] = {}


def flat(rows: Iterable[tuple[list[int], list[tuple[int, int]] | None]], offsets: bool) -> Any:
    """Rows as the operation returns them: ids, row offsets, and byte ranges if requested."""
    import numpy as np

    ids, bounds, ranges = array.array("i"), array.array("q", [0]), array.array("q")
    for row, spans in rows:
        ids.extend(row)
        bounds.append(len(ids))
        for span in spans or ():
            ranges.extend(span)
    results = np.array(ids, dtype=np.int32), np.array(bounds, dtype=np.int64)
    return (*results, np.array(ranges, dtype=np.int64).reshape(-1, 2)) if offsets else results


def in_bytes(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Converts character ranges to byte ranges."""
    if text.isascii():
        return list(spans)
    starts = [0]
    for character in text:
        starts.append(starts[-1] + len(character.encode("utf-8")))
    return [(starts[first], starts[last]) for first, last in spans]


def verify(library: str, tokenizer: Any, encode: Encode) -> None:
    """Declines unless the library gives the definition's tokens on the probes; checked once per tokenizer."""
    key = (library, tokenizer.digest)
    if key not in _VERIFIED:
        expected = [_native.defined_tokens(tokenizer, text) for text in PROBES]
        _VERIFIED[key] = [list(encode(text)) for text in PROBES] == expected
    if not _VERIFIED[key]:
        raise NotImplementedError(f"{library} gives other tokens than the tokenizer's definition")
