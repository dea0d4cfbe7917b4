"""Tiles of matrix products: how much of a product one program computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Tile(NamedTuple):
    """Rows, output features and inputs that a program reads at a time, its warps, and the stages of its pipeline."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


#: Tiles by the largest number of rows that each is for, in order; the last one is for any number.
Table = Sequence[tuple[float, Tile]]


def tile_for(rows: int, table: Table) -> Tile:
    """The tile of a product with so many rows."""
    return next(tile for most, tile in table if rows <= most)
