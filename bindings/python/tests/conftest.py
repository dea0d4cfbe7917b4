"""Shared fixtures."""

import os
import tempfile
from pathlib import Path

import pytest

# The user's measurements must neither affect the tests nor be changed by them.
os.environ["HOME"] = tempfile.mkdtemp(prefix="layerzero-tests-")


@pytest.fixture
def tokenizer_path() -> Path:
    return Path(__file__).parents[3] / "lz-ops/tests/data/byte_level_bpe.json"
