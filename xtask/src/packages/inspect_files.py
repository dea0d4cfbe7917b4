"""Checks metadata and content of a wheel and a source distribution: python inspect_files.py WHEEL SDIST."""

import email
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from includes import missing

PROJECT = tomllib.loads(Path("bindings/python/pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = set(PROJECT["optional-dependencies"])


def check_metadata(text: str, where: str) -> list[str]:
    metadata = email.message_from_string(text)
    problems = [
        f"{where}: the metadata has no {key}"
        for key in ("Name", "Version", "Summary", "License-Expression", "Keywords", "Requires-Python", "Description-Content-Type")
        if not metadata[key]
    ]
    if not metadata["Author"] and not metadata["Author-email"]:
        problems.append(f"{where}: the metadata has no author")
    if len(metadata.get_all("Classifier", [])) < 5:
        problems.append(f"{where}: the metadata has fewer than 5 classifiers")
    if set(metadata.get_all("License-File", [])) != {"LICENSE", "THIRD_PARTY_NOTICES.md"}:
        problems.append(f"{where}: license files are {metadata.get_all('License-File')}")
    if len(metadata.get_payload()) < 1000:
        problems.append(f"{where}: the readme is missing")
    if absent := EXTRAS - set(metadata.get_all("Provides-Extra", [])):
        problems.append(f"{where}: extras are missing: {', '.join(sorted(absent))}")
    if unexplained := [extra for extra in sorted(EXTRAS) if f"layerzero[{extra}]" not in metadata.get_payload()]:
        problems.append(f"{where}: the readme does not mention the extras {', '.join(unexplained)}")
    if "manylinux" in text and where == "wheel":
        problems.append("the platform tag belongs into the tag of the wheel, not into its metadata")
    return problems


def check_wheel(path: str) -> list[str]:
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        folder = metadata.rpartition("/")[0]
        problems = check_metadata(wheel.read(metadata).decode(), "wheel")
        for name in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
            if len(wheel.read(f"{folder}/licenses/{name}")) < 9_000:
                problems.append(f"wheel: the text of {name} is incomplete")
        entry_points = wheel.read(f"{folder}/entry_points.txt").decode()
        for entry in ("lz=layerzero.cli:main", "torch_dynamo_backends", "vllm.general_plugins"):
            if entry not in entry_points.replace(" ", ""):
                problems.append(f"wheel: no entry point {entry}")
        for name in ("layerzero/_docs/schema-language.md", "layerzero/_plugin_worker.py", "layerzero/py.typed", "layerzero/ops.pyi"):
            if name not in names:
                problems.append(f"wheel: no {name}")
        for name in names:
            if name.endswith(".md") and "_docs" in name and len(wheel.read(name)) < 200:
                problems.append(f"wheel: {name} is a link, not a page")
        if not any(name.startswith("layerzero/_native") and name.endswith(".so") for name in names):
            problems.append("wheel: no native module")
        if foreign := [name for name in names if not name.startswith(("layerzero/", folder))]:
            problems.append(f"wheel: files outside of the package: {foreign}")
    return problems


def check_sdist(path: str) -> list[str]:
    with tarfile.open(path) as sdist:
        members = sdist.getmembers()
        names = {member.name.partition("/")[2] for member in members if member.isfile()}
        # In the order of the archive: to read an earlier file, everything would be decompressed again.
        texts = {
            name: sdist.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in members
            if (name := member.name.partition("/")[2]) == "PKG-INFO" or (member.isfile() and name.endswith(".rs"))
        }
        problems = check_metadata(texts.pop("PKG-INFO"), "source distribution")
        # What the build needs and what `cargo` would look for.
        for name in ("pyproject.toml", "Cargo.toml", "Cargo.lock"):
            if name not in names:
                problems.append(f"source distribution: no {name}")
        if len(texts) < 500:
            problems.append(f"source distribution: only {len(texts)} Rust files")
        sources = {name: text for name, text in texts.items() if "/tests/" not in name}
        problems += missing(sources, names)
        if links := [member.name for member in members if member.issym()]:
            problems.append(f"source distribution: links {links[:3]}")
    return problems


def check_readme(text: str) -> list[str]:
    """The list of extras in the README of the repository."""
    return [f"README.md does not mention the extra {extra}" for extra in sorted(EXTRAS) if f"`{extra}`" not in text]


found = check_readme(Path("README.md").read_text(encoding="utf-8"))
found += check_wheel(sys.argv[1]) + check_sdist(sys.argv[2])
if found:
    sys.exit("\n".join(found))
print("the wheel and the source distribution are complete")
