"""A SentencePiece model as a definition: the pieces, scores and normaliser of a ``.model`` file in the form of a
``tokenizer.json``. The file is read here; the library of the same name is not needed.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from typing import Any

# Types of pieces and of models, as the format numbers them.
_UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_HIDDEN = (_UNKNOWN, _CONTROL, _UNUSED)
_UNIGRAM, _BPE = 1, 2
# Stands around pieces that no text can have: a character that Unicode promises never to be one.
_FENCE = "\uffff"


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of protocol buffers: numbers and values."""
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        tag = number()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, number()
        elif kind == 1:
            yield tag >> 3, data[place : place + 8]
            place += 8
        elif kind == 2:
            length = number()
            yield tag >> 3, data[place : place + length]
            place += length
        elif kind == 5:
            yield tag >> 3, data[place : place + 4]
            place += 4
        else:
            raise ValueError("this is no SentencePiece model")


def _pieces(fields: list[tuple[int, Any]]) -> list[tuple[str, float, int]]:
    pieces = []
    for field, value in fields:
        if field == 1:
            parts = dict(_fields(value))
            score = struct.unpack("<f", parts[2])[0] if 2 in parts else 0.0
            text, kind = parts.get(1, b"").decode("utf-8"), parts.get(3, 1)
            # What is written like them in a text is text to the library.
            pieces.append((f"{_FENCE}{text}{_FENCE}" if kind in _HIDDEN else text, score, kind))
    return pieces


def definition(model: bytes) -> str:
    """The ``tokenizer.json`` that gives the tokens of a ``.model``."""
    try:
        fields = list(_fields(model))
        pieces = _pieces(fields)
        trainer = dict(_fields(next((value for field, value in fields if field == 2), b"")))
        normalizer = dict(_fields(next((value for field, value in fields if field == 3), b"")))
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError("this is no SentencePiece model") from error
    kind = trainer.get(3, _UNIGRAM)
    if not pieces or kind not in (_UNIGRAM, _BPE):
        raise ValueError("only SentencePiece models of kind unigram and BPE have a definition here")
    if trainer.get(24, 0):
        raise ValueError("models that put white space behind words have no definition here")
    unknown = next(number for number, piece in enumerate(pieces) if piece[2] == _UNKNOWN)
    fallback = bool(trainer.get(35, 0))
    inner = _unigram(pieces, unknown, fallback) if kind == _UNIGRAM else _bpe(pieces, unknown, fallback)
    added = [
        {"id": number, "content": piece, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": False}
        for number, (piece, _, type_) in enumerate(pieces)
        if type_ == _USER
    ]
    prefix = bool(normalizer.get(3, 1))
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": _normalizer(normalizer, prefix),
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": pieces[unknown][0]}, "content": " ⁇ "},
                    {"type": "Replace", "pattern": {"Regex": f"{_FENCE}[^{_FENCE}]*{_FENCE}"}, "content": ""},
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    *strip,
                ],
            },
            "model": inner,
        }
    )


def _normalizer(spec: dict[int, Any], prefix: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if spec.get(2):
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(spec[2]).decode()})
    if spec.get(4, 1):
        for pattern, content in (("^ +| +$", ""), (" {2,}", " ")):
            steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": content})
    if prefix:
        # Nothing stays nothing; everything else begins with a space.
        steps.append({"type": "Prepend", "prepend": "▁"})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})
    return {"type": "Sequence", "normalizers": steps}


def _unigram(pieces: list[tuple[str, float, int]], unknown: int, fallback: bool) -> dict[str, Any]:
    # The least score is what unknown characters are counted by.
    least = min(score for _, score, type_ in pieces if type_ == 1)
    vocabulary = [(piece, score if type_ in (1, _USER) else least) for piece, score, type_ in pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": fallback}


def _bpe(pieces: list[tuple[str, float, int]], unknown: int, fallback: bool) -> dict[str, Any]:
    """Any two pieces whose texts together are a piece are joined, those of the highest score first."""
    normal = {piece: number for number, (piece, _, type_) in enumerate(pieces) if type_ in (1, _USER)}
    merges = []
    for piece, score, type_ in pieces:
        if type_ != 1:
            continue
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [half for half in halves if half[0] in normal and half[1] in normal]
        known.sort(key=lambda half: (normal[half[0]], normal[half[1]]))
        merges += [(-score, number, half) for number, half in enumerate(known)]
    merges.sort(key=lambda merge: merge[0])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": pieces[unknown][0],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": fallback,
        "vocab": {piece: number for number, (piece, _, _) in enumerate(pieces)},
        "merges": [list(half) for _, _, half in merges],
    }
