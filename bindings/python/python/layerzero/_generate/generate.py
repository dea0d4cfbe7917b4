"""`lz.generate`: prompts to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from layerzero._generate.generator import Generator, _token_ids


def generate(
    generator: Generator,
    tokens: Any,
    *,
    max_new_tokens: int = 128,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos: int | Sequence[int] | None = None,
    stop: Sequence[Sequence[int]] = (),
    stream: Callable[[Any], None] | None = None,
) -> Any:
    """Generates up to `max_new_tokens` tokens after a prompt (ids as a list or tensor) or after each of several prompts, which may have
    different lengths; returns the new tokens, as a list or one list per prompt.

    Without `temperature`, `top_k` and `top_p` the most likely token is taken; otherwise tokens are sampled by LayerZero's operations, and
    the same `seed` gives the same tokens. A sequence ends after one of the tokens `eos` (by default the model's) or of the sequences of
    tokens `stop`, which are part of the result. `stream` is called with every token, or with the list of the batch's tokens, in which
    finished sequences have `None`.
    """
    prompts, single = _prompts(tokens)
    results: list[list[int]] = [[] for _ in prompts]
    sampler = _Sampler(len(prompts), temperature, top_k, top_p, seed)
    for step in _steps(generator, prompts, sampler, max_new_tokens, _eos(generator, eos), stop):
        for sequence, token in enumerate(step):
            if token is not None:
                results[sequence].append(token)
        if stream is not None:
            stream(step[0] if single else step)
    return results[0] if single else results


def stream(
    generator: Generator,
    tokens: Any,
    *,
    max_new_tokens: int = 128,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    eos: int | Sequence[int] | None = None,
    stop: Sequence[Sequence[int]] = (),
) -> Iterator[Any]:
    """As `generate`, one step after the other."""
    prompts, single = _prompts(tokens)
    sampler = _Sampler(len(prompts), temperature, top_k, top_p, seed)
    for step in _steps(generator, prompts, sampler, max_new_tokens, _eos(generator, eos), stop):
        yield step[0] if single else step


def _eos(generator: Generator, eos: int | Sequence[int] | None) -> tuple[int, ...]:
    return generator.eos if eos is None else _token_ids(eos)


def _prompts(tokens: Any) -> tuple[list[list[int]], bool]:
    """Prompts as lists, and whether there is only one that is not in a batch."""
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    single = len(tokens) > 0 and not hasattr(tokens[0], "__len__")
    rows = [tokens] if single else list(tokens)
    prompts = [[int(token) for token in (row.tolist() if hasattr(row, "tolist") else row)] for row in rows]
    if not prompts or not all(prompts):
        raise ValueError("a prompt must have at least one token")
    return prompts, single


class _Sampler:
    """One token per row of logits."""

    def __init__(self, rows: int, temperature: float | None, top_k: int | None, top_p: float | None, seed: int) -> None:
        if temperature is not None and temperature < 0:
            raise ValueError(f"temperature is {temperature}, expected a positive number, or 0 for the most likely token")
        self._greedy = temperature == 0 or (temperature is None and top_k is None and top_p is None)
        self._rows, self._temperature, self._top_k, self._top_p, self._seed = rows, temperature or 1.0, top_k, top_p, seed

    def __call__(self, logits: Any, rows: list[int], step: int) -> list[int]:
        """Tokens of these rows of the batch. A row's random numbers do not depend on the others."""
        import torch

        from layerzero import ops

        if self._greedy:
            sampled = ops.sampling_topk(logits, k=1)
        else:
            if len(rows) < self._rows:
                # Random numbers are counted by row: finished sequences keep theirs.
                whole = logits.new_zeros((self._rows, logits.shape[-1]))
                whole[torch.tensor(rows)] = logits
                logits = whole
            common: dict[str, Any] = {"temperature": self._temperature, "seed": self._seed, "offset": step}
            if self._top_p is None and self._top_k:
                sampled = ops.sampling_topk(logits, k=self._top_k, **common)
            else:
                sampled = ops.sampling_topp(logits, p=1.0 if self._top_p is None else self._top_p, top_k=self._top_k or 0, **common)
            sampled = sampled[torch.tensor(rows)] if len(rows) < self._rows else sampled
        tokens: list[int] = sampled.tolist()
        if min(tokens) < 0:
            raise FloatingPointError(f"the logits of sequence {rows[tokens.index(-1)]} have no finite value")
        return tokens


def _steps(
    generator: Generator, prompts: list[list[int]], sampler: _Sampler, count: int, eos: tuple[int, ...], stop: Sequence[Sequence[int]]
) -> Iterator[list[int | None]]:
    """One list per step, with a token or `None` per prompt."""
    ends = [list(sequence) for sequence in stop]
    if not all(ends):
        raise ValueError("a stop sequence must have at least one token")
    if count <= 0:
        return
    session = generator.session()
    session.reserve({row: len(prompt) + count - 1 for row, prompt in enumerate(prompts)})
    written: list[list[int]] = [[] for _ in prompts]
    tokens = dict(enumerate(prompts))
    for step in range(count):
        rows = list(tokens)
        sampled = sampler(session.step(tokens), rows, step)
        result: list[int | None] = [None] * len(prompts)
        for row, token in zip(rows, sampled, strict=True):
            result[row] = token
            written[row].append(token)
            del tokens[row]
            if token in eos or any(written[row][-len(end) :] == end for end in ends):
                session.remove(row)
            else:
                tokens[row] = [token]
        yield result
        if not tokens:
            return
