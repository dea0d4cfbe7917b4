"""The documentation pages of the package: what ``lz docs`` prints."""

from __future__ import annotations

import difflib
from importlib import resources

_FOLDER = "_docs"


def names() -> list[str]:
    """Names of all pages."""
    folder = resources.files("layerzero") / _FOLDER
    return sorted(page.name.removesuffix(".md") for page in folder.iterdir() if page.name.endswith(".md"))


def summary(name: str) -> str:
    """The title of a page."""
    first = text(name).splitlines()[0]
    return first.removeprefix("# ")


def text(name: str) -> str:
    """The text of a page."""
    every = names()
    if name not in every:
        near = difflib.get_close_matches(name, every, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown page {name!r}{hint}; `lz docs` lists all pages")
    return (resources.files("layerzero") / _FOLDER / f"{name}.md").read_text(encoding="utf-8")
