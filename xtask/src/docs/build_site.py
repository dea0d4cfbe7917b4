"""Builds the documentation site with mkdocs: python build_site.py OUTPUT, in the root of the repository.

Pages are copied, links to files that are no pages become plain text, and mkdocs rejects every link that leads nowhere.
"""

import inspect
import json
import logging
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import layerzero as lz

ROOT = Path.cwd()
#: Pages of the root, below the folder `project` of the site.
PROJECT = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def destination(path: Path) -> str | None:
    """The path of a file of the repository inside the site; `None` for a file that is no page."""
    try:
        name = path.relative_to(ROOT).as_posix()
    except ValueError:
        return None
    if name == "README.md":
        return "overview.md"
    if name == "docs/README.md":
        return "index.md"
    if name in PROJECT:
        return f"project/{name}"
    if name == "bindings/python/README.md":
        return "python-package.md"
    if name.startswith("docs/") and path.suffix in (".md", ".ipynb") and path.is_file():
        page = name.removeprefix("docs/").removesuffix(".ipynb").removesuffix(".md") + ".md"
        return re.sub(r"(^|/)README\.md$", r"\1index.md", page)
    if name.startswith("results/") and path.suffix == ".md":
        return re.sub(r"(^|/)README\.md$", r"\1index.md", name)
    return None


def relinked(text: str, source: Path) -> str:
    """The text with links to pages of the site; the text of other links stays."""
    here = Path(destination(source) or "")

    def replace(match: re.Match[str]) -> str:
        label, target = match.groups()
        # An odd number of backticks before it on its line: it is inside a code span.
        line = match.string[match.string.rfind("\n", 0, match.start()) + 1 : match.start()]
        if line.count("`") % 2 or "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        file, mark, anchor = target.partition("#")
        pointed = (source.parent / file).resolve()
        if not pointed.exists():
            sys.exit(f"{source.relative_to(ROOT)}: the link to {target} leads nowhere")
        page = destination(pointed)
        if page is None:
            return label if label.startswith("`") else f"{label} (`{pointed.relative_to(ROOT)}`)"
        up = "../" * (len(here.parts) - 1)
        return f"[{label}]({up}{page}{mark}{anchor})"

    # Code blocks are left alone.
    parts = re.split(r"(^ *```.*?^ *```$)", text, flags=re.S | re.M)
    return "".join(part if number % 2 else LINK.sub(replace, part) for number, part in enumerate(parts))


def notebook(path: Path) -> str:
    """A notebook as Markdown."""
    lines = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(lines) + "\n"


def api() -> str:
    """The public names of the Python package, with signatures and documentation."""
    lines = ["# Python API", "", "Everything that `import layerzero as lz` exports; operations have [pages of their own](ops/index.md).", ""]
    for name in sorted(lz.__all__, key=str.lower):
        value = getattr(lz, name)
        if inspect.ismodule(value) or name == "__version__":
            continue
        lines += [f"## {name}", ""]
        if inspect.isclass(value):
            lines += [f"```python\nclass {name}\n```", ""]
        else:
            try:
                signature = str(inspect.signature(value))
            except (TypeError, ValueError):
                signature = "(...)"
            lines += [f"```python\nlz.{name}{signature}\n```", ""]
        # The type of operations has a descriptor here: each instance has its own documentation.
        documentation = value.__doc__ if isinstance(value.__doc__, str) else ""
        lines += [inspect.cleandoc(documentation), ""]
    return "\n".join(lines)


def main(output: str) -> None:
    site = (ROOT / output).resolve()
    with tempfile.TemporaryDirectory() as work:
        pages = Path(work) / "docs"
        sources = [ROOT / "README.md", *(ROOT / name for name in PROJECT), ROOT / "bindings/python/README.md"]
        sources += sorted((ROOT / "docs").rglob("*.md")) + sorted((ROOT / "results").glob("*.md"))
        sources += sorted((ROOT / "docs").rglob("*.ipynb"))
        for source in sources:
            name = destination(source)
            assert name is not None, source
            target = pages / name
            target.parent.mkdir(parents=True, exist_ok=True)
            text = notebook(source) if source.suffix == ".ipynb" else source.read_text(encoding="utf-8")
            target.write_text(relinked(text, source), encoding="utf-8")
        (pages / "api.md").write_text(api(), encoding="utf-8")
        config = {
            "site_name": "LayerZero",
            "docs_dir": str(pages),
            "site_dir": str(site),
            "use_directory_urls": False,
            "theme": {"name": "material", "font": False, "features": ["navigation.sections", "search.highlight", "content.code.copy"]},
            "plugins": ["search"],
            "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": True, "slugify": slugify}}, "pymdownx.superfences"],
            "validation": {"links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}, "nav": {"omitted_files": "ignore"}},
            "nav": [
                {"Home": "index.md"},
                {"Start": ["overview.md", "tutorial.md", {"First steps": "notebooks/first_steps.md"}, {"Your own operation": "notebooks/own_operation.md"}]},
                {"How to": [f"how-to/{page.name}" for page in sorted((pages / "how-to").glob("*.md"))]},
                {"Guides": [page.name for page in sorted(pages.glob("*.md")) if page.name not in ("index.md", "overview.md", "tutorial.md", "api.md")]},
                {"Reference": [{"Python API": "api.md"}, {"Operations": "ops/index.md"}, {"C++ functions": "cpp/index.md"}]},
                {"Project": [f"project/{name}" for name in PROJECT] + [{"Decision records": "adr/index.md"}, {"Measurement logs": "results/index.md"}]},
            ],
        }
        build(config, Path(work))
    rust = ROOT / "target/doc"
    if rust.is_dir():
        shutil.copytree(rust, site / "rust", dirs_exist_ok=True)
    print(f"{len(sources) + 1} pages in {site}")


def slugify(text: str, separator: str) -> str:
    """Anchors as GitHub forms them, which the pages use."""
    kept = [letter for letter in text.strip().lower() if letter.isalnum() or letter in " -_"]
    return "".join(kept).replace(" ", separator)


def build(config: dict[str, Any], folder: Path) -> None:
    """Builds the site; any warning, such as a link that leads nowhere, is an error."""
    from mkdocs.commands.build import build as run
    from mkdocs.config.base import load_config

    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)

    # mkdocs requires a file; a function such as `slugify` can be given only as a value.
    file = folder / "mkdocs.yml"
    file.write_text("site_name: LayerZero\n", encoding="utf-8")
    run(load_config(str(file), strict=True, **config))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build_site.py OUTPUT")
    main(sys.argv[1])
