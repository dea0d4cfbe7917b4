"""Shared fixtures."""

import gc
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

# The user's measurements must neither affect the tests nor be changed by them.
os.environ["HOME"] = tempfile.mkdtemp(prefix="layerzero-tests-")
# Programs with a home folder of their own need not find out again which libraries can be imported.
os.environ["XDG_CACHE_HOME"] = os.path.join(os.environ["HOME"], ".cache")


# Cyclic garbage collection would take a tenth of the time of the tests, mostly over the objects of imported libraries.
gc.set_threshold(50_000, 20, 100)


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_unconfigure() -> None:
    # Frozen objects would be reported as leaks at exit.
    gc.unfreeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-samples", action="store_true", help="compare all OpInfo samples of imported operators")
    parser.addoption("--write-lists", action="store_true", help="write the lists of refused samples and unreached operators")


@pytest.fixture
def tokenizer_path() -> Path:
    return Path(__file__).parents[3] / "lz-ops/tests/data/byte_level_bpe.json"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compiles a version of the test plugin once."""
    root = Path(__file__).parents[3]
    folder = tmp_path_factory.mktemp("plugins")
    found: dict[str, Path] = {}

    def build(fault: str) -> Path:
        if fault not in found:
            found[fault] = folder / f"{fault}.so"
            source = root / "tests" / "plugins" / "native" / "versioned.c"
            include = ["-I", str(root / "runtime" / "plugin" / "include")]
            command = ["gcc", "-std=gnu11", "-shared", "-fPIC", "-O1", f"-DFAULT_{fault}", *include, str(source), "-o", str(found[fault]), "-lm"]
            subprocess.run(command, check=True)
        return found[fault]

    return build
