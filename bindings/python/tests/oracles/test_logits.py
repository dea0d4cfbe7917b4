"""Logits processors of Transformers and torch, compared with every kernel that claims the call."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from every_kernel import check_every_kernel  # noqa: E402

import layerzero as lz  # noqa: E402

VOCAB = 301


def logits(seed: int, rows: int = 6) -> Any:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_repetition_penalty_matches_transformers() -> None:
    processor = transformers.RepetitionPenaltyLogitsProcessor(1.3)
    tokens = torch.randint(0, VOCAB, (6, 40), generator=torch.Generator().manual_seed(1))
    expected = processor(tokens, logits(1).clone())

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-6, atol=1e-6, msg=who)

    generated, prompt = tokens[:, 25:].to(torch.int32), tokens[:, :25].to(torch.int32)
    call = {"logits": logits(1), "output_tokens": generated, "prompt_tokens": prompt, "repetition": 1.3}
    assert check_every_kernel("sampling.penalties", lambda: call, check) >= 2


def test_frequency_and_presence_penalties_match_their_definition() -> None:
    tokens = torch.randint(-1, 12, (6, 40), generator=torch.Generator().manual_seed(2))
    counts = torch.stack([torch.bincount(row[row >= 0], minlength=VOCAB) for row in tokens])
    expected = logits(2) - 0.7 * counts - 0.4 * (counts > 0)

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        torch.testing.assert_close(results[0], expected, rtol=1e-6, atol=1e-6, msg=who)

    call = {"logits": logits(2), "output_tokens": tokens.to(torch.int32), "frequency": 0.7, "presence": 0.4}
    check_every_kernel("sampling.penalties", lambda: call, check)


def test_min_p_keeps_the_tokens_of_transformers() -> None:
    scores = logits(3) / 0.8
    kept = transformers.MinPLogitsWarper(0.1)(None, scores).isfinite()
    seen = torch.zeros_like(kept)

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        tokens = results[0].long()[:, None]
        assert kept.gather(1, tokens).all(), who
        seen.scatter_(1, tokens, True)

    for offset in range(400):
        call = {"logits": logits(3), "p": 0.1, "temperature": 0.8, "offset": offset}
        if offset < 3:
            check_every_kernel("sampling.minp", lambda call=call: call, check)
        else:
            check("as selected", [lz.ops.sampling_minp(**call)], call)
    # Every likely token was drawn, so none is excluded wrongly.
    probable = torch.softmax(scores.masked_fill(~kept, -torch.inf), -1) > 0.05
    assert seen[probable].all()


def test_bitmask_has_the_layout_of_xgrammar() -> None:
    allowed = torch.rand(6, VOCAB, generator=torch.Generator().manual_seed(4)) > 0.5
    # xgrammar: bit t % 32 of word t // 32, lowest bit first, in i32.
    padded = torch.nn.functional.pad(allowed, (0, -VOCAB % 32)).view(6, -1, 32).long()
    words = (padded << torch.arange(32)).sum(-1).to(torch.int32)
    expected = logits(4).masked_fill(~allowed, -torch.inf)

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        assert torch.equal(results[0], expected), who

    assert check_every_kernel("sampling.mask", lambda: {"logits": logits(4), "bitmask": words}, check) >= 2


@pytest.mark.parametrize("top_k", [0, 1, 7, VOCAB])
def test_logprobs_match_torch(top_k: int) -> None:
    tokens = torch.randint(0, VOCAB, (6,), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
    every = torch.log_softmax(logits(5).double(), -1)
    own = every.gather(1, tokens.long()[:, None])
    best, chosen = every.sort(stable=True, dim=-1, descending=True)

    def check(who: str, results: list[Any], _: dict[str, Any]) -> None:
        logprobs, ranks, top_logprobs, top_tokens = results
        torch.testing.assert_close(logprobs.double(), own[:, 0], rtol=1e-5, atol=1e-5, msg=who)
        assert torch.equal(ranks.long(), (every > own).sum(-1) + 1), who
        assert torch.equal(top_tokens.long(), chosen[:, :top_k]), who
        torch.testing.assert_close(top_logprobs.double(), best[:, :top_k], rtol=1e-5, atol=1e-5, msg=who)

    assert check_every_kernel("logits.logprobs", lambda: {"logits": logits(5), "tokens": tokens, "top_k": top_k}, check) >= 2
