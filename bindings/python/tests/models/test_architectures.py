"""Transformers architectures with tiny configurations and random weights: the integration gives the same
results, or reports that the model keeps its own code. ``lz check-transformers`` checks all architectures."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import layerzero as lz  # noqa: E402
from layerzero.cli import main  # noqa: E402
from layerzero.integrations import transformers as integration  # noqa: E402
from layerzero.integrations.transformers import check  # noqa: E402

# One of each kind: decoders, encoders, encoder-decoders, images, audio, multimodal, mixtures of experts, hybrids.
SAMPLE = """
    albert apertus audio-spectrogram-transformer bart beit bert chameleon clip deepseek_v3 distilbert electra gemma gemma2
    gemma3_text gpt2 gpt_bigcode gpt_neox granite hubert idefics3 internvl jamba llama llama4_text llava m2m_100 marian mistral
    mixtral mllama modernbert olmo2 opt phi phi3 qwen2 qwen2_5_vl qwen3 qwen3_moe siglip smollm3 t5 vit wav2vec2 whisper
""".split()
# Architectures that once differed or failed, by the part of the integration, and others of the same kind.
EVER_DIFFERENT = {
    "attention": """
        axk2 big_bird bigbird_pegasus blip bloom bridgetower bros canine codegen convbert data2vec-vision deepseek_v32
        deepseek_v4 deepseek_vl_hybrid falcon flava flint git glm_moe_dsa gpt_neo gpt_neox_japanese gpt_oss gptj
        granite_swa granitemoe_swa groupvit hy_v4 ibert imagegpt informer led longformer luke megatron-bert
        mimo_v2_flash mistral_large4 mistral_large4_text mpt mvp nllb-moe nystromformer openai_privacy_filter pegasus_x
        rembert roformer sam_hq_vision_model sam_vision_model speech_to_text speecht5 splinter squeezebert
        swiftformer swinv2 t5gemma tapas time_series_transformer timesformer trocr vaultgemma videoprism vilt visual_bert
        vitdet wavlm xglm xlm xlnet yoso
    """.split(),
    "norms": """
        falcon_mamba gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text minicpm_ocr minicpmv4_6
        minicpmv4_7 minimax_m3_vl minimax_m3_vl_text muse_glimmer muse_glimmer_text muse_spark_text qwen3_5 qwen3_5_moe
        qwen3_5_moe_text qwen3_5_text qwen3_next recurrent_gemma step3p7 t5gemma t5gemma2 vaultgemma zaya
    """.split(),
    "rope": """
        aya_vision codegen cohere cohere2 cohere2_moe cohere2_vision deepseek_v4 dinov3_vit ernie4_5 ernie4_5_moe
        ernie4_5_vl_moe gemma3n_text gemma4 gemma4_text gemma4_unified gemma4_unified_text glm glm4 glm46v glm4v
        glm4v_text glm_ocr glm_ocr_text glmga gpt_oss gptj helium moonshine nanochat openai_privacy_filter pixtral
    """.split(),
}
PARTS = {name: ["attention", "norms", "rope"] for name in SAMPLE}
for part, names in EVER_DIFFERENT.items():
    for name in names:
        PARTS.setdefault(name, [])
        PARTS[name] += [part] if part not in PARTS[name] else []


@pytest.fixture(autouse=True)
def one_thread():
    integration.register()
    threads = torch.get_num_threads()
    # Tiny tensors are slower with several threads.
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.filterwarnings("ignore")
def test_results_equal_the_models_own(name):
    if name not in check.model_types():
        pytest.skip("this Transformers does not have it")
    for result in check.check(name, PARTS[name]):
        assert result.outcome in ("equal", "own path", "refused"), result


def test_sample_uses_layerzero():
    for name in ("llama", "gemma2", "gpt_oss", "bert", "t5"):
        (result,) = check.check(name, ["attention"])
        assert (result.outcome, "calls" in result.detail) == ("equal", True), result


def test_the_command(capsys):
    assert main(["check-transformers", "--only", "llama", "bloom"]) == 0
    table = capsys.readouterr().out
    assert "BloomForCausalLM computes attention without the table" in table and "llama" in table
    assert main(["check-transformers", "--only", "lama"]) == 1
    assert "no architecture lama" in capsys.readouterr().err


def test_difference_fails_the_command(monkeypatch, capsys):
    attention = lz.attention
    monkeypatch.setattr(lz, "attention", lambda *arguments, **keywords: attention(*arguments, **keywords) * 1.001)
    assert main(["check-transformers", "--only", "llama"]) == 1
    assert "different" in capsys.readouterr().out
