"""torch's OpInfo samples of its operators, each with every kernel that claims the call.

Samples that no operation can express are skipped with a reason, and the number of remaining samples is
asserted.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

import layerzero as lz  # noqa: E402

INFOS = {info.full_name: info for info in op_db}


class NotStated(Exception):
    """Why a sample cannot be expressed as a call."""


def rms_norm(x, shape, weight=None, eps=None):
    if len(shape) != 1:
        raise NotStated("it normalizes over several dimensions")
    return "norm.rms", (x, weight), {"eps": torch.finfo(x.dtype).eps if eps is None else eps}


def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    if len(shape) != 1:
        raise NotStated("it normalizes over several dimensions")
    return "norm.layer", (x, weight, bias), {"eps": eps}


def linear(x, weight, bias=None):
    if x.dim() < 1 or weight.dim() != 2:
        raise NotStated("the weight is a vector")
    return "mlp.linear", (x, weight, bias), {}


def embedding(table, ids, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False):
    if max_norm is not None:
        raise NotStated("it changes the table")
    return "embedding.lookup", (table, ids), {}


def gelu(x, approximate="none"):
    return "activation.gelu", (x,), {"approximate": approximate}


def silu(x, inplace=False):
    return "activation.silu", (x,), {}


def relu(x, inplace=False):
    return "activation.relu", (x,), {}


def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if dropout_p:
        raise NotStated("it drops out")
    if not q.dim() == k.dim() == v.dim():
        raise NotStated("queries are broadcast over batches")
    if q.dim() == 3:
        # Inputs without a batch dimension get one of size 1.
        q, k, v = q[None], k[None], v[None]
        attn_mask = attn_mask[None] if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    grouped = q.shape[1] != k.shape[1]
    if grouped and not enable_gqa:
        raise NotStated("heads are broadcast")
    keywords = {"causal": is_causal, "layout": "BHSD", "sm_scale": scale}
    if is_causal:
        keywords["causal_offset"] = 0
    return f"attention.{'gqa' if grouped else 'standard'}.prefill", (q, k, v, attn_mask), keywords


# Expected number of supported samples: fewer would mean that some are skipped silently.
STATED = {
    "nn.functional.rms_norm": (rms_norm, 4),
    "nn.functional.layer_norm": (layer_norm, 4),
    "nn.functional.linear": (linear, 20),
    "nn.functional.embedding": (embedding, 7),
    "nn.functional.gelu": (gelu, 8),
    "nn.functional.silu": (silu, 3),
    "nn.functional.relu": (relu, 4),
    "nn.functional.scaled_dot_product_attention": (attention, 9),
}


def kernels(operation, arguments, keywords):
    candidates = lz.explain(operation, *arguments, **keywords).to_dict()["candidates"]
    return [one["kernel"] for one in candidates if not one.get("reasons")]


@pytest.mark.parametrize("name", STATED)
def test_samples(name):
    state, least = STATED[name]
    info, stated, tried = INFOS[name], 0, set()
    for sample in info.sample_inputs("cpu", torch.float32):
        try:
            operation, arguments, keywords = state(sample.input, *sample.args, **sample.kwargs)
        except NotStated:
            continue
        keywords = {key: value for key, value in keywords.items() if value is not None}
        expected = info.op(sample.input, *sample.args, **sample.kwargs)
        stated += 1
        for kernel in kernels(operation, arguments, keywords):
            tried.add(kernel)
            lz.lock(operation, kernel)
            try:
                actual = getattr(lz.ops, operation.replace(".", "_"))(*arguments, **keywords)
            finally:
                lz.unlock(operation)
            torch.testing.assert_close(
                actual.view(expected.shape), expected, rtol=1e-4, atol=1e-5, msg=lambda text, kernel=kernel: f"{kernel}: {text}"
            )
    assert stated >= least, f"{stated} samples can be stated"
    assert any(kernel.startswith("reference.") for kernel in tried)
    assert any(kernel.startswith("torch.") for kernel in tried)


# Number of torch's error inputs that can be expressed; all of rms_norm's normalize over several dimensions.
REFUSED = {"nn.functional.rms_norm": 0, "nn.functional.embedding": 2, "nn.functional.gelu": 1}


@pytest.mark.parametrize("name", [name for name in STATED if INFOS[name].error_inputs_func is not None])
def test_error_inputs_are_refused(name):
    state, stated = STATED[name][0], 0
    for wrong in INFOS[name].error_inputs("cpu"):
        sample = wrong.sample_input
        try:
            operation, arguments, keywords = state(sample.input, *sample.args, **sample.kwargs)
        except NotStated:
            continue
        stated += 1
        with pytest.raises(lz.ValidationError):
            getattr(lz.ops, operation.replace(".", "_"))(*arguments, **keywords)
    assert stated == REFUSED[name]
