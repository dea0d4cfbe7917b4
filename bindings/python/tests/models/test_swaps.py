"""Norms and rotary embeddings are replaced if they compute what the operations compute, and left unchanged otherwise."""

import copy
import sys

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from layerzero.integrations import transformers as integration  # noqa: E402

FUNCTION = "apply_rotary_pos_emb"


@pytest.fixture(autouse=True)
def own_functions():
    """Restores the functions of Transformers."""
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    for module in list(sys.modules.values()):
        own = getattr(vars(module).get(FUNCTION), "_layerzero_own", None)
        if own is not None:
            setattr(module, FUNCTION, own)


class Scaled(torch.nn.Module):
    """An RMS norm whose factor is `factor(weight)`."""

    def __init__(self, factor, features=12, eps=1e-5):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(features))
        self.eps = eps
        self.factor = factor

    def forward(self, x, gate=None):
        y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        y = (y * self.factor(self.weight.float())).to(x.dtype)
        return y if gate is None else y * gate


class AnyNorm(Scaled):
    pass


class NormOfSquares(Scaled):
    def forward(self, x):
        return super().forward(x) ** 2


class Changed(Scaled):
    """An RMS norm that changes its input or its result."""

    def __init__(self, before, after):
        super().__init__(lambda weight: weight)
        self.before, self.after = before, after

    def forward(self, x):
        return self.after(super().forward(self.before(x)))


class WithScale(Scaled):
    """An RMS norm with a setting that is 1 at first."""

    def __init__(self):
        super().__init__(lambda weight: weight)
        self.scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


def x(dtype=torch.float32):
    return torch.randn(3, 12, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("factor", [lambda weight: weight, lambda weight: 1 + weight], ids=["weight", "weight plus one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_are_detected_by_their_results(factor, dtype):
    model = torch.nn.Sequential(AnyNorm(factor)).to(dtype)
    swaps = integration.swap_norms(model)
    assert swaps.swapped == ["0"] and not swaps.left and len(swaps) == 1
    # Weights that are loaded later are used.
    model.load_state_dict({"0.weight": torch.linspace(-1, 2, 12).to(dtype)}, assign=True)
    expected = AnyNorm.forward(model[0], x(dtype))
    found = model(x(dtype))
    torch.testing.assert_close(found, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    assert not torch.equal(found, torch.zeros_like(found)) and integration.swap_norms(model).swapped == ["0"]


@pytest.mark.parametrize(
    "module",
    [
        AnyNorm(lambda weight: weight.exp()),
        AnyNorm(lambda weight: 1 - weight),
        AnyNorm(lambda weight: 1.0),
        NormOfSquares(lambda weight: weight),
        Changed(lambda x: x, lambda y: y.clamp(-8, 8)),
        Changed(lambda x: x.clamp(-100, 100), lambda y: y),
        Changed(torch.nan_to_num, lambda y: y),
        Changed(lambda x: x, lambda y: y * (2 if y.shape[-2] == 1 else 1)),
    ],
)
def test_other_norms_are_left_unchanged(module):
    model = torch.nn.Sequential(module)
    expected = model(x())
    swaps = integration.swap_norms(model)
    assert not swaps.swapped and "computes something other than norm.rms" in swaps.left["0"]
    assert "left 0" in str(swaps)
    assert torch.equal(model(x()), expected)


def test_a_norm_with_another_setting_is_left_unchanged():
    model = torch.nn.Sequential(WithScale())
    swaps = integration.swap_norms(model)
    assert not swaps.swapped and "depends on `scale`" in swaps.left["0"] and model[0].scale == 1.0


class Scale(Scaled):
    """An RMS norm whose name does not say so."""


def test_names_of_classes_do_not_matter():
    model = torch.nn.Sequential(Scale(lambda weight: weight), torch.nn.Linear(12, 12))
    swaps = integration.swap_norms(model)
    assert swaps.swapped == ["0"] and not swaps.left


def test_norms_of_torch():
    model = torch.nn.Sequential(torch.nn.RMSNorm(12, eps=1e-5), torch.nn.RMSNorm(12), torch.nn.LayerNorm(12))
    model[0].weight.copy_(torch.linspace(-1, 2, 12))
    expected = model(x())
    swaps = integration.swap_norms(model)
    assert swaps.swapped == ["0"] and list(swaps.left) == ["1"]
    torch.testing.assert_close(model(x()), expected, rtol=1e-5, atol=1e-5)


def test_norm_with_a_bias_is_left_unchanged():
    module = AnyNorm(lambda weight: weight)
    module.bias = torch.nn.Parameter(torch.ones(12))
    assert "not have the parameters of an RMS norm" in integration.swap_norms(torch.nn.Sequential(module)).left["0"]


def test_uncompared_calls_use_the_modules_own_forward():
    module = AnyNorm(lambda weight: 1 + weight)
    model = torch.nn.Sequential(module)
    integration.swap_norms(model)
    assert torch.equal(module(x(), gate=2.0), AnyNorm.forward(module, x(), 2.0))
    assert torch.equal(module(x(torch.float64)), AnyNorm.forward(module, x(torch.float64)))


def test_a_copy_of_a_swapped_model_has_its_own_weights():
    model = torch.nn.Sequential(AnyNorm(lambda weight: 1 + weight))
    integration.swap_norms(model)
    other = copy.deepcopy(model)
    other[0].weight.fill_(3.0)
    torch.testing.assert_close(other(x()), model(x()) * 4)


def test_swapped_model_can_be_pickled(tmp_path):
    # Not a whole model: with the package `kernels`, models of Transformers hold local objects, which cannot be pickled.
    model = tiny(transformers.LlamaConfig).model.layers[0].mlp
    model.norm = tiny(transformers.LlamaConfig).model.norm
    assert integration.swap_norms(model).swapped == ["norm"]
    values = torch.randn(3, 32)
    expected = model.norm(values)
    torch.save(model, tmp_path / "model.pt")
    assert torch.equal(torch.load(tmp_path / "model.pt", weights_only=False).norm(values), expected)


def tiny(kind, **more):
    sizes = {
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(kind(**sizes, **more), attn_implementation="eager").eval()
    for parameter in model.parameters():
        parameter.data = parameter.data + torch.randn_like(parameter) * 0.2
    return model


IDS = torch.arange(5, 16)[None]


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Gemma2", "Qwen3", "Cohere", "Glm", "Ernie4_5", "GptOss", "Helium"])
def test_rotations_of_every_form(kind):
    more = {"num_local_experts": 2, "num_experts_per_tok": 1} if kind == "GptOss" else {}
    model = tiny(getattr(transformers, f"{kind}Config"), **more)
    expected = model(IDS).logits
    norms = integration.swap_norms(model)
    assert len(norms) >= 5 or (kind == "Cohere" and norms.left)
    assert integration.swap_rope(model).swapped == [type(model).__module__]
    for _ in range(2):
        torch.testing.assert_close(model(IDS).logits, expected, rtol=1e-4, atol=1e-4)


def test_reversed_rotation_is_left_unchanged():
    model = tiny(transformers.NanoChatConfig)
    expected = model(IDS).logits
    swaps = integration.swap_rope(model)
    assert not swaps.swapped and "rotates differently" in swaps.left[type(model).__module__]
    assert torch.equal(model(IDS).logits, expected)


def test_other_tables_use_the_models_own_function():
    model = tiny(transformers.LlamaConfig)
    source = sys.modules[type(model).__module__]
    own = getattr(source, FUNCTION)
    integration.swap_rope(model)
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    # The halves of these tables differ, which one angle per pair cannot express.
    cos, sin = torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    with pytest.warns(UserWarning, match="modeling_llama rotates differently"):
        found = getattr(source, FUNCTION)(q, k, cos, sin)
    for one, other in zip(found, own(q, k, cos, sin), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["Llama", "Gemma2"])
def test_a_compiled_model_with_swaps_has_no_breaks(kind):
    model = tiny(getattr(transformers, f"{kind}Config"))
    integration.register()
    model.set_attn_implementation("layerzero")
    integration.swap_norms(model)
    integration.swap_rope(model)
    expected = model(IDS, use_cache=False).logits
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(IDS, use_cache=False).logits, expected, rtol=1e-4, atol=1e-4)
