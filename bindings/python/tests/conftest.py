"""What several tests need."""

from pathlib import Path

import pytest


@pytest.fixture
def tokenizer_path() -> Path:
    return Path(__file__).parents[3] / "lz-ops/tests/data/byte_level_bpe.json"
