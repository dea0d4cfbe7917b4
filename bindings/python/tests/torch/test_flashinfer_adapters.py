"""FlashInfer's adapters without FlashInfer: a stub computes on the host what the library would, with its
conventions. Plans, arguments and results must match what the operations define."""

import functools
import importlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import layerzero as lz  # noqa: E402

LN2 = 0.6931471805599453


def attend(q, k, v, causal=False, window_left=-1, soft_cap=0.0, sm_scale=1.0):
    """One request, ``q [m, heads, d]``: output and base-2 lse, as the library returns them."""
    group = q.shape[1] // k.shape[1]
    keys, values = (one.float().repeat_interleave(group, 1).transpose(0, 1) for one in (k, v))
    scores = q.float().transpose(0, 1) @ keys.transpose(1, 2) * sm_scale
    if soft_cap > 0:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    place = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    key = torch.arange(k.shape[0])[None]
    visible = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
    if causal:
        visible &= key <= place
    if window_left >= 0:
        visible &= key >= place - window_left
    scores = scores.masked_fill(~visible, -torch.inf)
    lse = torch.logsumexp(scores, -1) / LN2
    output = (torch.softmax(scores, -1).nan_to_num(0) @ values).transpose(0, 1)
    return output.to(q.dtype), lse.clamp(min=-5e4).transpose(0, 1)


class Wrapper:
    """The common part of all wrapper stubs: stores a plan, counts plans, and passes everything to a compiled module."""

    plans = runs = 0

    def __init__(self, memory, *_, **__):
        pass

    def keep(self, **plan):
        Wrapper.plans += 1
        assert all(one.device.type == "cpu" for one in plan.values() if isinstance(one, torch.Tensor))
        self.planned = plan
        self._cached_module = types.SimpleNamespace(run=self.compiled)

    def run(self, *tensors, out, lse, return_lse):
        Wrapper.runs += 1
        assert (lse is not None) == return_lse
        q, *others = tensors
        pair = others[0] if len(others) == 1 else tuple(others)
        self._cached_module.run(self.planned, q, *pair, out, lse, 7, pair)

    def compiled(self, plan, q, k, v, out, lse, number, unused):
        assert out.is_contiguous() and number == 7
        output, found = (torch.cat(one) for one in zip(*self.requests(plan, q, k, v), strict=True))
        out.copy_(output)
        if lse is not None:
            lse.copy_(found)


class Ragged(Wrapper):
    def plan(self, queries, keys, heads, kv_heads, dim, dim_v, *, logits_soft_cap, q_data_type, kv_data_type, **params):
        self.keep(queries=queries, keys=keys, params={**params, "soft_cap": logits_soft_cap})

    def requests(self, plan, q, k, v):
        queries, keys = plan["queries"].tolist(), plan["keys"].tolist()
        rows = zip(queries, queries[1:], keys, keys[1:], strict=False)
        return [attend(q[a:b], k[c:d], v[c:d], **plan["params"]) for a, b, c, d in rows]


class Paged(Wrapper):
    def __init__(self, memory, layout, **_):
        self.layout = layout

    def plan(self, queries, pages, indices, last, heads, kv_heads, dim, size, *, logits_soft_cap, q_data_type, kv_data_type, **params):
        self.keep(queries=queries, pages=pages, indices=indices, last=last, params={**params, "soft_cap": logits_soft_cap})

    def requests(self, plan, q, k, v):
        caches = [one if self.layout == "NHD" else one.transpose(1, 2) for one in (k, v)]
        results = []
        queries, pages, last = (plan[name].tolist() for name in ("queries", "pages", "last"))
        for row in range(len(pages) - 1):
            mine = plan["indices"][pages[row] : pages[row + 1]].long()
            length = (len(mine) - 1) * caches[0].shape[1] + last[row] if len(mine) else 0
            k, v = (one[mine].flatten(0, 1)[:length] for one in caches)
            results.append(attend(q[queries[row] : queries[row + 1]], k, v, **plan["params"]))
        return results


class Decode(Paged):
    def plan(self, pages, indices, last, *numbers, **params):
        super().plan(torch.arange(len(pages)), pages, indices, last, *numbers, **params)


class Latents(Wrapper):
    def plan(self, queries, pages, indices, lengths, heads, dim_ckv, dim_kpe, size, causal, sm_scale, dtype, kv_dtype):
        assert (dim_ckv, dim_kpe) == (32, 8)
        self.keep(queries=queries, pages=pages, indices=indices, lengths=lengths, params={"causal": causal, "sm_scale": sm_scale})
        self._cached_module = types.SimpleNamespace(run=self.compiled_latents)

    def run(self, q_nope, q_pe, ckv, kpe, out, lse, return_lse):
        Wrapper.runs += 1
        self._cached_module.run(self.planned, q_nope, q_pe, ckv, kpe, out, lse)

    def compiled_latents(self, plan, q_nope, q_pe, ckv, kpe, out, lse):
        queries, pages, lengths = (plan[name].tolist() for name in ("queries", "pages", "lengths"))
        for row in range(len(pages) - 1):
            mine, some = plan["indices"][pages[row] : pages[row + 1]].long(), slice(queries[row], queries[row + 1])
            keys = torch.cat((ckv[mine], kpe[mine]), -1).flatten(0, 1)[: lengths[row], None]
            made = attend(torch.cat((q_nope[some], q_pe[some]), -1), keys, keys, **plan["params"])
            out[some] = made[0][..., : ckv.shape[-1]]
            if lse is not None:
                lse[some] = made[1]


class Single:
    """A compiled module stub: it assumes contiguous output rows."""

    def run(self, q, k, v, scratch, out, lse, mask_mode, layout, window_left, mask, slopes, soft_cap, sm_scale, *_):
        assert out.is_contiguous() and (mask, slopes, layout) == (None, None, 0)
        output, found = attend(q, k, v, mask_mode == 1, window_left, soft_cap, sm_scale)
        out.copy_(output)
        if lse is not None:
            lse.copy_(found)


@pytest.fixture
def adapters(monkeypatch):
    modules = {name: types.ModuleType(name) for name in ("flashinfer", *(f"flashinfer.{part}" for part in ("mla", "prefill", "norm", "rope")))}
    whole = modules["flashinfer"]
    whole.__version__ = "0.6.4"
    whole.BatchPrefillWithRaggedKVCacheWrapper, whole.BatchPrefillWithPagedKVCacheWrapper = Ragged, Paged
    whole.BatchDecodeWithPagedKVCacheWrapper = Decode
    modules["flashinfer.mla"].BatchMLAPagedAttentionWrapper = Latents
    modules["flashinfer.prefill"].get_single_prefill_module = lambda *_: Single()
    modules["flashinfer.norm"].get_norm_module = modules["flashinfer.rope"].get_rope_module = lambda: None
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    ours = [name for name in sys.modules if name.startswith("layerzero.backends.flashinfer")]
    for name in ours:
        monkeypatch.delitem(sys.modules, name)
    package = importlib.import_module("layerzero.backends.flashinfer")
    plans = sys.modules["layerzero.backends.flashinfer._plans"]
    monkeypatch.setattr(plans, "_raw_stream", lambda index: 0)
    monkeypatch.setattr(plans, "SCRATCH_BYTES", 16)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    Wrapper.plans = Wrapper.runs = 0
    yield package.KERNELS
    for name in [name for name in sys.modules if name.startswith("layerzero.backends.flashinfer")]:
        del sys.modules[name]


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def page_table(*lengths, size=4):
    pages = [-(-length // size) for length in lengths]
    indptr = torch.tensor([sum(pages[:row]) for row in range(len(pages) + 1)], dtype=torch.int32)
    indices = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(1)).int()
    last = [length - (count - 1) * size if count else 0 for length, count in zip(lengths, pages, strict=True)]
    return {"kv_indptr": indptr, "kv_indices": indices, "kv_last_page_len": torch.tensor(last, dtype=torch.int32)}, sum(pages)


def dense(batch, seq_q, seq_k, layout="BSHD", **params):
    q, k, v = draw(batch, seq_q, 6, 64), draw(batch, seq_k, 2, 64), draw(batch, seq_k, 2, 64, seed=1)
    if layout == "BHSD":
        q, k, v = (one.transpose(1, 2).contiguous() for one in (q, k, v))
    return {"q": q, "k": k, "v": v, "layout": layout, **params}


def paged(*lengths, queries=None, layout="NHD", **params):
    table, count = page_table(*lengths)
    caches = {name: draw(count, 4, 2, 64, seed=at) for at, name in enumerate(("k_cache", "v_cache"))}
    if layout == "HND":
        caches = {name: cache.transpose(1, 2).contiguous() for name, cache in caches.items()}
    if queries is not None:
        table["qo_indptr"] = torch.tensor([sum(queries[:row]) for row in range(len(queries) + 1)], dtype=torch.int32)
    rows = len(lengths) if queries is None else sum(queries)
    return {"q": draw(rows, 6, 64), **caches, **table, "layout": layout, **params}


def latents(tokens, length, **params):
    return {"q_nope": draw(tokens, 4, 32), "q_pe": draw(tokens, 4, 8), "ckv": draw(length, 1, 32), "kpe": draw(length, 1, 8), "sm_scale": 0.2, **params}


def latent_pages(*lengths, **params):
    table, count = page_table(*lengths)
    rows = len(lengths)
    caches = {"ckv_cache": draw(count, 4, 32), "kpe_cache": draw(count, 4, 8)}
    return {"q_nope": draw(rows, 4, 32), "q_pe": draw(rows, 4, 8), **caches, **table, "sm_scale": 0.2, **params}


CALLS = [
    ("attention.mla.decode", "flashinfer.fa2.mla.decode", latents(3, 9, return_lse=True)),
    ("attention.mla.prefill", "flashinfer.fa3.mla.prefill", latents(5, 9, causal=True)),
    ("attention.mla.decode.paged", "flashinfer.fa2.mla.decode.paged", latent_pages(7, 0, 16, return_lse=True)),
    ("attention.gqa.prefill", "flashinfer.fa2.single.gqa.prefill", dense(1, 9, 9, causal=True, return_lse=True)),
    ("attention.gqa.prefill", "flashinfer.fa2.single.gqa.prefill", dense(1, 5, 9, "BHSD", causal=True, return_lse=True, sm_scale=0.2)),
    ("attention.gqa.prefill", "flashinfer.fa2.single.gqa.prefill", dense(1, 5, 9, window_left=3, soft_cap=2.0, causal=True)),
    ("attention.gqa.prefill", "flashinfer.fa2.gqa.prefill", dense(3, 7, 7, causal=True, return_lse=True)),
    ("attention.gqa.prefill", "flashinfer.fa3.gqa.prefill", dense(2, 4, 9, sm_scale=0.3)),
    ("attention.gqa.decode", "flashinfer.cuda_cores.gqa.decode", {**dense(3, 1, 12), "q": draw(3, 6, 64)}),
    (
        "attention.gqa.decode",
        "flashinfer.tensor_cores.gqa.decode",
        {**dense(3, 1, 12), "q": draw(3, 6, 64), "kv_lens": torch.tensor([5, 0, 12], dtype=torch.int32), "return_lse": True},
    ),
    ("attention.gqa.decode.paged", "flashinfer.cuda_cores.gqa.decode.paged", paged(7, 0, 16, return_lse=True)),
    ("attention.gqa.decode.paged", "flashinfer.tensor_cores.gqa.decode.paged", paged(7, 3, layout="HND", soft_cap=3.0)),
    ("attention.gqa.prefill.paged", "flashinfer.fa2.gqa.prefill.paged", paged(7, 0, 16, queries=(3, 2, 5), causal=True, return_lse=True)),
]


@pytest.mark.parametrize(("operation", "kernel", "call"), CALLS, ids=[f"{number} {kernel}" for number, (_, kernel, _) in enumerate(CALLS)])
def test_adapters_agree_with_the_reference(adapters, operation, kernel, call):
    function = adapters[kernel]

    @functools.wraps(function)
    def standin(*inputs, **params):
        return function(*inputs, **params)

    lz.register_kernel(operation=operation, id=f"standin.{operation}", backend="standin")(standin)
    try:
        results = []
        for chosen in (f"standin.{operation}", f"standin.{operation}", f"reference.{operation}"):
            lz.lock(operation, chosen)
            result = getattr(lz.ops, operation.replace(".", "_"))(**call)
            results.append(result if isinstance(result, tuple) else (result,))
            lz.unlock(operation)
    finally:
        lz.unlock(operation)
        lz.unregister_backend("standin")
    for actual in results[:2]:
        for one, other in zip(actual, results[2], strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)
    assert Wrapper.plans == (0 if ".single." in kernel else 1), "the second call finds the plan of the first"
    assert Wrapper.runs == Wrapper.plans, "and does without the wrapper"


def test_recorded_call_holds_no_tensors(adapters):
    import gc
    import weakref

    function, call = adapters["flashinfer.cuda_cores.gqa.decode.paged"], paged(7, 16)
    inputs = [call[name] for name in ("q", "k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")]
    params = {"window_left": -1, "soft_cap": 0.0, "sm_scale": 0.125, "return_lse": False, "layout": "NHD"}
    first = function(*inputs, None, **params)
    twice = function(*[one.clone() for one in inputs[:3]], *inputs[3:], None, **params)
    torch.testing.assert_close(twice, first)
    gone = [weakref.ref(one) for one in (*inputs[:3], first)]
    del call, inputs[:3], first
    gc.collect()
    assert [one() for one in gone] == [None] * 4


def test_tensor_passed_twice_is_not_recorded(adapters):
    function, call = adapters["flashinfer.cuda_cores.gqa.decode.paged"], paged(7, 16)
    tables = [call[name] for name in ("kv_indptr", "kv_indices", "kv_last_page_len")]
    params = {"window_left": -1, "soft_cap": 0.0, "sm_scale": 0.125, "return_lse": False, "layout": "NHD"}
    q, k, v = call["q"], call["k_cache"], call["v_cache"]
    function(q, k, k, *tables, None, **params)
    ours = function(q, k, v, *tables, None, **params)
    again = function(q, k, v, *tables, None, **params)
    assert Wrapper.runs == 2
    assert torch.equal(ours, again) and not torch.equal(ours, function(q, k, k, *tables, None, **params))


def test_plan_is_made_anew_after_a_table_is_written(adapters):
    call = paged(7, 16)
    function = adapters["flashinfer.cuda_cores.gqa.decode.paged"]
    inputs = [call[name] for name in ("q", "k_cache", "v_cache", "kv_indptr", "kv_indices", "kv_last_page_len")]
    params = {"window_left": -1, "soft_cap": 0.0, "sm_scale": 0.125, "return_lse": False, "layout": "NHD"}
    before = function(*inputs, None, **params)
    call["kv_last_page_len"].fill_(1)
    after = function(*inputs, None, **params)
    assert Wrapper.plans == 2 and not torch.allclose(before, after)
    # Other queries over the same tables need no new plan.
    function(inputs[0] * 2, *inputs[1:], None, **params)
    assert Wrapper.plans == 2


def test_sampling_operations_have_separate_random_streams(adapters):
    """The library uses the same random numbers for all samplers, so a draft and its verification would be correlated."""
    rest = sys.modules["layerzero.backends.flashinfer._rest"]
    streams = (rest._TOPK, rest._TOPP, rest._SPECULATIVE)
    params = [rest._random_state(stream, 5, 9, None, None, "cpu") for stream in streams]
    assert len({one["seed"] for one in params}) == 3 and {one["offset"] for one in params} == {9}
    tensors = [rest._random_state(stream, 0, 9, torch.tensor(5), None, "cpu") for stream in streams]
    assert [int(one["seed"]) for one in tensors] == [one["seed"] for one in params]
