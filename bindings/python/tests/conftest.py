"""Shared fixtures."""

import os
import tempfile
from pathlib import Path

import pytest

# The user's measurements must neither affect the tests nor be changed by them.
os.environ["HOME"] = tempfile.mkdtemp(prefix="layerzero-tests-")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-samples", action="store_true", help="compare all OpInfo samples of imported operators")
    parser.addoption("--write-lists", action="store_true", help="write the lists of refused samples and unreached operators")


@pytest.fixture
def tokenizer_path() -> Path:
    return Path(__file__).parents[3] / "lz-ops/tests/data/byte_level_bpe.json"
