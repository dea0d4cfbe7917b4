"""What several tests need."""

import os
import tempfile
from pathlib import Path

import pytest

# Measurements of the person who runs the tests must neither decide them nor be changed by them.
os.environ["HOME"] = tempfile.mkdtemp(prefix="layerzero-tests-")


@pytest.fixture
def tokenizer_path() -> Path:
    return Path(__file__).parents[3] / "lz-ops/tests/data/byte_level_bpe.json"
