"""Tokenizer files that were once encoded differently or could not be loaded: the tokens are those of the library."""

from pathlib import Path

import pytest
import tokenizers

import layerzero as lz

DATA = Path(__file__).parents[4] / "target/oracles/tokenizers-4"


@pytest.fixture(scope="module")
def texts():
    lines = (DATA / "languages.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip()][7::400] + ["", "  two  spaces\n\n\tdef f(x): return 12345", "👩‍🚀 e\u0301 don't"]


@pytest.mark.parametrize("name", ["gemma3", "gpt4o", "mistral_nemo", "deepseek_v3", "claude", "bert_cased"])
def test_tokens_and_offsets_equal_the_from_library(name, texts):
    library = tokenizers.Tokenizer.from_file(str(DATA / f"{name}.json"))
    wanted = [encoding.ids for encoding in library.encode_batch(texts)]
    path = DATA / f"{name}.json"
    assert lz.tokenize(texts, path) == wanted
    found, _ = lz.tokenize(texts, path, return_offsets=True)
    assert found == wanted


def test_truncation_that_a_library_object_states_is_refused():
    library = tokenizers.Tokenizer.from_file(str(DATA / "bert_cased.json"))
    library.enable_truncation(512)
    with pytest.raises(ValueError, match=r"states `truncation`.*512.*whole_texts"):
        lz.tokenize("word " * 1200, library)
    library.no_truncation()
    library.enable_padding()
    with pytest.raises(ValueError, match="states `padding`"):
        lz.tokenize("word", library)
    library.no_padding()
    assert lz.tokenize("word " * 1200, library) == library.encode("word " * 1200).ids
