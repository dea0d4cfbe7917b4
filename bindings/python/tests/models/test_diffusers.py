"""Diffusers models with LayerZero's attention give the same images as with torch's."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel  # noqa: E402
from diffusers.models import attention_dispatch  # noqa: E402
from diffusers.models.attention_processor import AttnProcessor2_0  # noqa: E402

import layerzero as lz  # noqa: E402
from layerzero.integrations import diffusers as ours  # noqa: E402


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)
    with torch.no_grad():
        yield


def counted(monkeypatch):
    """Counts the calls of LayerZero's attention."""
    calls = []
    attention = lz.attention
    monkeypatch.setattr(lz, "attention", lambda *arguments, **keywords: (calls.append(1), attention(*arguments, **keywords))[1])
    return calls


def unet():
    return UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=24, attention_head_dim=8, norm_num_groups=8,
    ).eval()  # fmt: skip


def test_a_unet_with_self_and_cross_attention(monkeypatch):
    model = unet()
    sample, words = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 24)
    expected = model(sample, 10, words).sample
    before = ours.attach(model)
    calls = counted(monkeypatch)
    found = model(sample, 10, words).sample
    assert calls, "our attention was not called"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    ours.detach(model, before)
    calls.clear()
    assert torch.equal(model(sample, 10, words).sample, expected) and not calls
    assert all(type(one) is AttnProcessor2_0 for one in model.attn_processors.values())


def test_mask_over_text_tokens(monkeypatch):
    model = unet()
    sample, words = torch.randn(2, 4, 8, 8), torch.randn(2, 7, 24)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]])
    expected = model(sample, 10, words, encoder_attention_mask=mask).sample
    assert not torch.allclose(expected, model(sample, 10, words).sample)
    ours.attach(model)
    found = model(sample, 10, words, encoder_attention_mask=mask).sample
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_autoencoder_attention_over_an_image(monkeypatch):
    model = AutoencoderKL(
        block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=4, norm_num_groups=8,
    ).eval()  # fmt: skip
    image = torch.randn(1, 3, 16, 16)
    expected = model.encode(image).latent_dist.mean
    ours.attach(model)
    calls = counted(monkeypatch)
    torch.testing.assert_close(model.encode(image).latent_dist.mean, expected, rtol=1e-4, atol=1e-5)
    assert calls


def dit():
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
    ).eval()  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 5, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.zeros(5, 3),
    }
    return model, inputs


def test_dit_with_its_native_backend():
    model, inputs = dit()
    expected = model(**inputs).sample
    with pytest.raises(ValueError, match="override_torch"):
        ours.attach(model)
    with lz.override_torch(["scaled_dot_product_attention"]) as overridden:
        found = model(**inputs).sample
    assert sum(overridden.calls.values()) == 2, "one for each layer"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def register():
    with pytest.warns(DeprecationWarning, match="override_torch"):
        ours.register()


def test_dit_with_the_registered_backend(monkeypatch):
    model, inputs = dit()
    expected = model(**inputs).sample
    register()
    register()
    model.set_attention_backend("layerzero")
    calls = counted(monkeypatch)
    found = model(**inputs).sample
    assert len(calls) == 2, "one for each layer"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="Linear has no attention processors"):
        ours.attach(torch.nn.Linear(2, 2))


def test_unknown_keywords_are_refused():
    register()
    query = torch.randn(1, 4, 2, 8)
    dispatch = attention_dispatch.dispatch_attention_fn
    expected = dispatch(query, query, query)
    torch.testing.assert_close(dispatch(query, query, query, backend="layerzero"), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="keyword `return_lse`"):
        dispatch(query, query, query, attention_kwargs={"return_lse": True}, backend="layerzero")
    with pytest.raises(NotImplementedError, match="keyword `_parallel_config`"):
        dispatch(query, query, query, parallel_config=object(), backend="layerzero")
    with pytest.raises(ValueError, match="cannot both be given"):
        dispatch(query, query, query, torch.ones(4, 4, dtype=torch.bool), is_causal=True, backend="layerzero")
    model = unet()
    ours.attach(model)
    attention = next(module for module in model.modules() if type(getattr(module, "processor", None)) is ours.AttnProcessor)
    with pytest.raises(NotImplementedError, match="keyword `scale`"):
        attention.processor(attention, torch.randn(1, 4, attention.to_q.in_features), scale=0.5)
