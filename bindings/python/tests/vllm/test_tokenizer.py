"""The tokenizer mode `layerzero` of vLLM gives the results of its mode `hf`."""

import copy
import pickle

import pytest

pytest.importorskip("torch")
registry = pytest.importorskip(
    "vllm.tokenizers.registry", reason="vLLM is not installed; `cargo xtask test python-models` downloads its Python files", exc_type=ImportError
)
from transformers import PreTrainedTokenizerFast  # noqa: E402
from vllm.renderers.registry import RENDERER_REGISTRY  # noqa: E402
from vllm.tokenizers.hf import maybe_make_thread_pool  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero.integrations import vllm as plugin  # noqa: E402
from layerzero.integrations.tokenizers import encode_plus  # noqa: E402

TEXTS = ["hello world", "Straße 東京", "<|end|> hello<tool>", ""]


@pytest.fixture
def folder(tmp_path, tokenizer_path):
    """A folder with a tokenizer as models have it."""
    path = tmp_path
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path), eos_token="<|end|>")
    fast.save_pretrained(path)
    return path


@pytest.fixture
def tokenizers(folder):
    plugin.register()
    return [registry.get_tokenizer(folder, tokenizer_mode=mode) for mode in ("hf", "layerzero")]


def test_the_mode_is_registered_once(caplog):
    plugin.register()
    plugin.register()
    assert registry.TokenizerRegistry.load_tokenizer_cls("layerzero").__name__ == "LayerZeroTokenizer"
    assert RENDERER_REGISTRY.load_renderer_cls("layerzero") is RENDERER_REGISTRY.load_renderer_cls("hf")
    assert not [record for record in caplog.records if "already registered" in record.message or "layerzero has no" in record.message]


def test_results_are_those_of_the_mode_hf(tokenizers):
    own, ours = tokenizers
    assert type(ours)._encode_plus is encode_plus and type(own)._encode_plus is not encode_plus
    before = lz.tokenizer_cache().counters().misses
    for text in TEXTS:
        for special in (True, False):
            assert ours.encode(text, add_special_tokens=special) == own.encode(text, add_special_tokens=special)
            assert ours(text, truncation=True, max_length=3).input_ids == own(text, truncation=True, max_length=3).input_ids
        ids = own.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == own.decode(ids, skip_special_tokens=skip)
        assert ours.convert_ids_to_tokens(ids) == own.convert_ids_to_tokens(ids)
    assert lz.tokenizer_cache().counters().misses > before
    for name in ("all_special_ids", "max_token_id", "max_chars_per_token", "is_fast", "vocab_size", "truncation_side", "eos_token_id"):
        assert getattr(ours, name) == getattr(own, name), name
    assert ours.get_vocab() == own.get_vocab() and len(ours) == len(own)


def test_copies_and_pools_use_layerzero(tokenizers):
    own, ours = tokenizers
    ours.encode(TEXTS[0])
    pool = maybe_make_thread_pool(copy.copy(ours))
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), pool, copy.deepcopy(pool)):
        assert type(other)._encode_plus is encode_plus, other
        assert [other.encode(text) for text in TEXTS] == [own.encode(text) for text in TEXTS]
        assert other.max_token_id == own.max_token_id
