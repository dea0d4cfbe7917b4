"""Checks that the package of a crate contains every file that its code includes: python inspect_crate.py NAME FOLDER."""

import subprocess
import sys
from pathlib import Path

from includes import missing

name, folder = sys.argv[1], Path(sys.argv[2])
command = ["cargo", "package", "--list", "--allow-dirty", "--offline", "--package", name]
listed = subprocess.run(command, cwd=folder, capture_output=True, text=True)
if listed.returncode != 0:
    sys.exit(listed.stderr)
files = set(listed.stdout.splitlines())
sources = {path: (folder / path).read_text(encoding="utf-8") for path in files if path.endswith(".rs") and (folder / path).is_file()}
# Tests of a package are not built by those who depend on it, and read files of the repository.
sources = {path: text for path, text in sources.items() if not path.startswith(("tests/", "benches/"))}
problems = missing(sources, files)
problems += [f"{path} is missing" for path in ("Cargo.toml", "README.md", "src/lib.rs") if path not in files]
if problems:
    sys.exit("\n".join(problems))
