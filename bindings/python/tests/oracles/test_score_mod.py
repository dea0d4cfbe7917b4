"""Score expressions: torch's FlexAttention without compilation, compared with every kernel that claims the call."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")
from every_kernel import check_every_kernel  # noqa: E402

import layerzero as lz  # noqa: E402

BATCH, HEADS, KV_HEADS, DIM = 2, 6, 2, 24

Modifier = Callable[[Any, Any, Any, Any, Any], Any]


def masked(score: Any, visible: Any) -> Any:
    return torch.where(visible, score, -float("inf"))


# Text, the same as a function of FlexAttention, where q is the position of the query.
CASES: list[tuple[str, Modifier]] = [
    ("score * 1.5 - 2", lambda s, b, h, q, k: s * 1.5 - 2),
    ("score if q_pos >= kv_idx else -inf", lambda s, b, h, q, k: masked(s, q >= k)),
    ("score + (kv_idx - q_pos) * 0.0625 * (h + 1)", lambda s, b, h, q, k: s + (k - q) * 0.0625 * (h + 1)),
    ("tanh(score / 2) * 2 + b", lambda s, b, h, q, k: torch.tanh(s / 2) * 2 + b),
    ("score if abs(q_pos - kv_idx) % 3 == 0 and kv_idx // 4 != 2 or kv_idx == 0 else -inf", lambda s, b, h, q, k: masked(s, (((q - k).abs() % 3 == 0) & (k // 4 != 2)) | (k == 0))),
    ("score - log(1 + abs(q_pos - kv_idx))", lambda s, b, h, q, k: s - torch.log1p((q - k).abs().double())),
    ("min(max(score, -0.5), 0.5) * exp(-kv_idx / 8)", lambda s, b, h, q, k: s.clamp(-0.5, 0.5) * torch.exp(-k / 8)),
]


def inputs(queries: int, keys: int, dtype: Any) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(keys)
    shapes = [(BATCH, HEADS, queries, DIM), (BATCH, KV_HEADS, keys, DIM), (BATCH, KV_HEADS, keys, DIM)]
    q, k, v = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


def expected_of(q: Any, k: Any, v: Any, modifier: Modifier) -> Any:
    """`[batch, heads, queries, features]`, in f64; the last query is at the position of the last key."""
    offset = k.shape[2] - q.shape[2]
    return flex.flex_attention(q.double(), k.double(), v.double(), score_mod=lambda s, b, h, i, j: modifier(s, b, h, i + offset, j), enable_gqa=True)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("text", "modifier"), CASES, ids=[text for text, _ in CASES])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (9, 70), (40, 40)])
def test_prefill_matches_flex_attention(queries: int, keys: int, text: str, modifier: Modifier, dtype: Any) -> None:
    q, k, v = inputs(queries, keys, dtype)
    expected = expected_of(q, k, v, modifier)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0].double(), expected, rtol=tolerance, atol=tolerance, msg=who)

    call = {"q": q, "k": k, "v": v, "score_mod": text, "layout": "BHSD"}
    assert check_every_kernel("attention.gqa.prefill", lambda: call, check) >= 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("text", "modifier"), CASES, ids=[text for text, _ in CASES])
@pytest.mark.parametrize("keys", [1, 33, 300])
def test_decode_matches_flex_attention(keys: int, text: str, modifier: Modifier) -> None:
    q, k, v = inputs(1, keys, torch.float32)
    expected = expected_of(q, k, v, modifier)[:, :, 0]

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5, msg=who)

    call = {"q": q[:, :, 0], "k": k, "v": v, "score_mod": text, "layout": "BHSD"}
    assert check_every_kernel("attention.gqa.decode", lambda: call, check) >= 2


#: Queries and keys of each request: several, one, more keys than a tile of kernels has, no queries, more queries than keys.
LENGTHS = [(3, 9), (1, 1), (7, 70), (0, 4), (4, 2)]


class Requests:
    """Requests of `LENGTHS`, ragged and over pages of 4 slots."""

    def __init__(self, fp8: bool = False) -> None:
        generator = torch.Generator().manual_seed(5)

        def tensors(count: int, heads: int) -> Any:
            return torch.randn(count, heads, DIM, generator=generator)

        self.q = [tensors(queries, HEADS) for queries, _ in LENGTHS]
        self.k, self.v = ([tensors(keys, KV_HEADS) for _, keys in LENGTHS] for _ in range(2))
        self.scales = {"k_scale": torch.tensor([0.25, 0.75]), "v_scale": torch.tensor([1.5])} if fp8 else {}
        if fp8:
            self.k, self.v = ([one.to(torch.float8_e4m3fn).float() for one in cache] for cache in (self.k, self.v))

    def ragged(self) -> dict[str, Any]:
        return {
            "q": torch.cat(self.q), "k": torch.cat(self.k), "v": torch.cat(self.v), "qo_indptr": starts(len(one) for one in self.q),
            "kv_indptr": starts(len(one) for one in self.k),
        }  # fmt: skip

    def paged(self) -> dict[str, Any]:
        counts = [-(-len(one) // 4) for one in self.k]
        order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(6))[: sum(counts)]

        def pages(tensors: list[Any]) -> Any:
            cache = torch.full((sum(counts) + 2, 4, KV_HEADS, DIM), float("nan"))
            padded = [torch.nn.functional.pad(one, (0, 0, 0, 0, 0, -len(one) % 4), value=float("nan")) for one in tensors]
            cache[order] = torch.cat(padded).unflatten(0, (-1, 4))
            return cache.to(torch.float8_e4m3fn) if self.scales else cache

        last = torch.tensor([len(one) - (count - 1) * 4 for one, count in zip(self.k, counts, strict=True)], dtype=torch.int32)
        table = {"kv_indptr": starts(counts), "kv_indices": order.to(torch.int32), "kv_last_page_len": last}
        return {"k_cache": pages(self.k), "v_cache": pages(self.v), **table, **self.scales}

    def expected(self, request: int, modifier: Modifier) -> Any:
        """``[queries, heads, features]`` of one request, in f64."""
        k, v = self.k[request].double(), self.v[request].double()
        if self.scales:
            k, v = k * self.scales["k_scale"].double()[:, None], v * self.scales["v_scale"].double()
        of = lambda s, b, h, q, k: modifier(s, torch.tensor(request), h, q, k)  # noqa: E731
        return expected_of(*(one.transpose(0, 1)[None] for one in (self.q[request].double(), k, v)), of)[0].transpose(0, 1)


def starts(lengths: Any) -> Any:
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("form", ["ragged", "paged", "paged.fp8"])
@pytest.mark.parametrize(("text", "modifier"), CASES, ids=[text for text, _ in CASES])
def test_requests_match_flex_attention(text: str, modifier: Modifier, form: str) -> None:
    """Indices are those of each request, `b` is the request, and the last query has the position of the last key."""
    requests = Requests(fp8=form == "paged.fp8")
    expected = [requests.expected(number, modifier) for number, (queries, _) in enumerate(LENGTHS) if queries]

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0].double(), torch.cat(expected), rtol=1e-5, atol=1e-5, equal_nan=True, msg=who)

    ragged = requests.ragged()
    if form != "ragged":
        ragged = {"q": ragged["q"], "qo_indptr": ragged["qo_indptr"], **requests.paged()}
    call = {**ragged, "score_mod": text}
    assert check_every_kernel(f"attention.gqa.prefill.{form}", lambda: call, check) >= 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("form", ["paged", "paged.fp8"])
@pytest.mark.parametrize(("text", "modifier"), CASES, ids=[text for text, _ in CASES])
def test_paged_decode_matches_flex_attention(text: str, modifier: Modifier, form: str) -> None:
    requests = Requests(fp8=form == "paged.fp8")
    requests.q = [torch.randn(1, HEADS, DIM, generator=torch.Generator().manual_seed(number)) for number in range(len(LENGTHS))]
    expected = torch.cat([requests.expected(number, modifier) for number in range(len(LENGTHS))])

    def check(who: str, found: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5, msg=who)

    call = {"q": torch.cat(requests.q), **requests.paged(), "score_mod": text}
    assert check_every_kernel(f"attention.gqa.decode.{form}", lambda: call, check) >= 2
    torch.testing.assert_close(lz.paged_attention(**call).double(), expected, rtol=1e-5, atol=1e-5)


def test_parameters_are_read_per_request_and_head() -> None:
    requests = Requests()
    parameters = torch.randn(len(LENGTHS), HEADS, 1)
    text, slopes = "score + p0 * (kv_idx - q_pos)", parameters[..., 0].contiguous()
    ragged = requests.ragged()
    expected = lz.ops.attention_gqa_prefill_ragged(**ragged, alibi_slopes=slopes)
    found = lz.ops.attention_gqa_prefill_ragged(**ragged, score_mod=text, score_params=parameters)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    paged = {"q": ragged["q"], "qo_indptr": ragged["qo_indptr"], **requests.paged(), "score_mod": text, "score_params": parameters}
    torch.testing.assert_close(lz.paged_attention(**paged), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(lz.ValidationError, match="score_params"):
        lz.paged_attention(**{**paged, "score_params": parameters[:2]})
    with pytest.raises(lz.ValidationError, match="score_mod, which is missing"):
        lz.paged_attention(**{**paged, "score_mod": None})


def test_parameters_are_read_per_batch_row_and_head() -> None:
    q, k, v = inputs(5, 12, torch.float32)
    parameters = torch.randn(BATCH, HEADS, 2)
    bias = parameters[:, :, 0, None, None] * torch.arange(12.0) + parameters[:, :, 1, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(BATCH, HEADS, 5, 12), enable_gqa=True)
    found = lz.attention(q, k, v, score_mod="score + p0 * kv_idx + p1", score_params=parameters, layout="BHSD")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # One set of parameters for all heads, without copies.
    shared = parameters[:, :1].expand(BATCH, HEADS, 2)
    bias = (shared[:, :, 0, None, None] * torch.arange(12.0) + shared[:, :, 1, None, None]).expand(BATCH, HEADS, 5, 12)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    found = lz.attention(q, k, v, score_mod="score + p0 * kv_idx + p1", score_params=shared, layout="BHSD")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_compiled_function_may_contain_the_call() -> None:
    q, k, v = inputs(5, 12, torch.float32)

    def step(q: Any, k: Any, v: Any) -> Any:
        return lz.ops.attention_gqa_prefill(q, k, v, score_mod="score if kv_idx <= q_pos else -inf", layout="BHSD") * 2

    expected = lz.ops.attention_gqa_prefill(q, k, v, causal=True, layout="BHSD") * 2
    torch.testing.assert_close(step(q, k, v), expected, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scor", "did you mean `score`"),
        ("score +", "at character 8"),
        ("score > 0", "bool"),
        ("score + p0", "p0"),
        ("", "empty"),
        ("score ** 2", "at character"),
    ],
)
def test_mistakes_are_refused(text: str, message: str) -> None:
    q, k, v = inputs(2, 3, torch.float32)
    with pytest.raises(lz.ValidationError, match=message) as error:
        lz.attention(q, k, v, score_mod=text, layout="BHSD")
    assert any(reason.code == "SCORE_MOD_INVALID" for reason in error.value.reasons)


def test_other_kernels_are_rejected_with_a_reason() -> None:
    q, k, v = inputs(2, 3, torch.float32)
    arguments = {"q": q, "k": k, "v": v, "layout": "BHSD"}
    assert lz.which("attention.gqa.prefill", **arguments, score_mod="score").kernel_id.startswith("cpu.attention.gqa.prefill.score_mod")
    assert "score_mod" not in lz.which("attention.gqa.prefill", **arguments).kernel_id
    assert "OPTIONAL_INPUT_UNSUPPORTED" in str(lz.explain("attention.gqa.prefill", **arguments, score_mod="score").to_dict())
    for operation in ("attention.gqa.prefill.ragged", "attention.standard.prefill.ragged"):
        heads = KV_HEADS if "standard" in operation else HEADS
        indptr = starts([2])
        ragged = {"q": q[0, :heads].transpose(0, 1), "k": k[0, :, :2].transpose(0, 1), "v": v[0, :, :2].transpose(0, 1)}
        call = {**ragged, "qo_indptr": indptr, "kv_indptr": indptr}
        assert lz.which(operation, **call, score_mod="score").kernel_id.startswith(f"cpu.{operation}.score_mod")
        assert "score_mod" not in lz.which(operation, **call).kernel_id
