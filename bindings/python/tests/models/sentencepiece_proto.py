"""Hand-written SentencePiece models: the protocol buffer of a model with any pieces and settings."""

import struct
from typing import NamedTuple

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE, WORD, CHAR = range(1, 5)


class Piece(NamedTuple):
    text: str
    score: float = 0.0
    kind: int = NORMAL


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def number_field(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def bytes_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def piece_field(piece: Piece) -> bytes:
    score = varint(2 << 3 | 5) + struct.pack("<f", piece.score)
    return bytes_field(1, bytes_field(1, piece.text.encode()) + score + number_field(3, piece.kind))


def model(pieces: list[Piece], model_type: int, *, byte_fallback: bool = False, suffix: bool = False, normalizer: bytes = b"", rest: bytes = b"") -> bytes:
    trainer = number_field(3, model_type) + number_field(24, suffix) + number_field(35, byte_fallback)
    return b"".join(map(piece_field, pieces)) + bytes_field(2, trainer) + bytes_field(3, normalizer) + rest


def normalizer(dummy_prefix: bool = True, remove_extra: bool = True, escape: bool = True) -> bytes:
    return number_field(3, dummy_prefix) + number_field(4, remove_extra) + number_field(5, escape)
