"""The `kernels` package replaces layers of Transformers' models with LayerZero's, where both compute the same."""

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
kernels = pytest.importorskip("kernels")
from kernels import Mode, kernelize, use_kernel_forward_from_hub, use_kernel_mapping  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero.integrations import transformers as integration  # noqa: E402

IDS = torch.arange(5, 16)[None]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def tiny(kind, **more):
    sizes = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = parameter.data + torch.randn_like(parameter) * 0.2
    return model


def mapped(model, mode=Mode.INFERENCE):
    with use_kernel_mapping(integration.kernel_mapping(), inherit_mapping=False):
        return kernelize(model, mode=mode, device="cpu")


@pytest.fixture
def calls(monkeypatch):
    counts = {"norm_rms": 0, "posenc_rope": 0}

    def count(name, function):
        def counted(*arguments, **keywords):
            counts[name] += 1
            return function(*arguments, **keywords)

        return counted

    for name in counts:
        monkeypatch.setattr(lz.ops, name, count(name, getattr(lz.ops, name)))
    return counts


@pytest.fixture(autouse=True)
def own_rotations():
    """The functions of a source file are shared by all models of the file: they get their own forward back."""
    yield
    import sys

    for name, module in list(sys.modules.items()):
        function = getattr(module, "apply_rotary_pos_emb", None) if name.startswith("transformers.models.") else None
        for attribute in ("forward", "_layerzero_mapped_rope"):
            getattr(function, "__dict__", {}).pop(attribute, None)


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Mistral"])
def test_norms_and_rotations(kind, calls):
    model = tiny(kind)
    expected = model(IDS).logits
    assert not any(calls.values())
    mapped(model)
    for _ in range(2):
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)
    assert calls["norm_rms"] >= 10 and calls["posenc_rope"] >= 8


def test_training_keeps_the_layers_of_the_model(calls):
    model = mapped(tiny("Llama"), Mode.TRAINING)
    model(IDS)
    assert not any(calls.values())


@use_kernel_forward_from_hub("RMSNorm")
class OtherMathematics(torch.nn.Module):
    """Has the name of an RMS norm and another formula."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.eps = 1e-5

    def forward(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight


def test_a_layer_with_other_mathematics_keeps_its_forward():
    model = torch.nn.Sequential(OtherMathematics())
    x = torch.randn(3, 8)
    expected = model(x)
    mapped(model)
    with pytest.warns(UserWarning, match="does not run OtherMathematics, which computes something other than norm.rms"):
        assert torch.equal(model(x), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(x), expected)


def test_dtypes_that_were_not_compared(calls):
    model = tiny("Llama")
    norm = model.model.norm
    mapped(model)
    x = torch.randn(3, 32)
    norm(x)
    before = calls["norm_rms"]
    assert norm(x.double()).dtype == type(norm).forward(norm, x.double()).dtype
    assert calls["norm_rms"] == before
