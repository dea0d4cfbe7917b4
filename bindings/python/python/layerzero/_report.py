"""Tables: aligned text in a terminal, HTML in a notebook, plain data for programs. Needs no other packages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_MARKS = {"ok": "32", "warning": "33", "problem": "31"}


class Table(NamedTuple):
    """A title, columns and rows. Cells that are keys of `_MARKS` are colored in a terminal."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, color: bool = False) -> str:
        """As aligned columns."""
        cells = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in cells) for at in range(len(self.columns))]
        lines = [f"\x1b[1m{self.title}\x1b[0m" if color else self.title]
        for number, row in enumerate(cells):
            parts = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            if color:
                style = "2" if number == 0 else ""
                parts = [
                    f"\x1b[{_MARKS.get(cell, style)}m{part}\x1b[0m" if _MARKS.get(cell, style) else part
                    for cell, part in zip(row, parts, strict=True)
                ]
            lines.append("  " + "  ".join(parts).rstrip())
        return "\n".join(lines)

    def html(self) -> str:
        """As an HTML table for notebooks."""
        from html import escape

        def line(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(line(row, "td") for row in self.rows)
        return f"<h4>{escape(self.title)}</h4><table>{line(self.columns, 'th')}{body}</table>"


class Report:
    """A result as tables and as plain data."""

    def __init__(self, tables: tuple[Table, ...], data: dict[str, Any]) -> None:
        self.tables = tables
        self.data = data

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dictionaries and lists."""
        return self.data

    def __str__(self) -> str:
        color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        return "\n\n".join(table.text(color) for table in self.tables)

    def __repr__(self) -> str:
        return "\n\n".join(table.text() for table in self.tables)

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables)


def table(title: str, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> Table:
    """A table whose cells are converted to text."""
    return Table(title, tuple(columns), tuple(tuple(_cell(cell) for cell in row) for row in rows))


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).replace("\n", " ")
