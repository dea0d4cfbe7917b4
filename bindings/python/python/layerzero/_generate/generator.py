"""Compiled causal language models, and sessions that hold cached sequences."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from layerzero._compile.quantization import Accuracy
from layerzero._native import CompiledGraph, GraphImportError

if TYPE_CHECKING:
    from layerzero._generate.memory import CacheMemory


class Generator:
    """A causal language model of Transformers, compiled for generation on the host or on the CUDA device of its parameters.

    Prompts and decode steps of every number of sequences and tokens run one compiled graph, which writes keys and values into the caches
    in place. `cache` is the strategy of the caches: `contiguous`, one block per sequence, or `paged`, pages of `page_size` tokens from a
    pool. `weights`, `group`, `activations`, `quantize_tied` and `executor` are those of `lz.compile`; `accuracy` reports how much the logits change.
    Threads may share a generator: every call has a session of its own.

    Logits after a short sample are compared with the model's, after a longer one with `validation="strict"`, and a model that gives others
    is refused.
    """

    def __init__(
        self,
        model: Any,
        *,
        cache: Literal["contiguous", "paged"] = "contiguous",
        page_size: int = 16,
        validation: Literal["none", "normal", "strict"] = "normal",
        weights: Literal["int8", "int4"] | None = None,
        group: int | None = None,
        activations: Literal["int8"] | None = None,
        quantize_tied: bool = False,
        executor: Literal["native", "torch"] | None = None,
    ) -> None:
        from layerzero._compile import quantization
        from layerzero._compile.aten import CacheInputs
        from layerzero._compile.device import DeviceGraph
        from layerzero._compile.export import constants_of, import_with_cache
        from layerzero._generate import memory, trace

        if validation not in ("none", "normal", "strict"):
            raise ValueError(f"validation is {validation!r}, expected 'none', 'normal' or 'strict'")
        if model.training:
            raise GraphImportError("the model is in training mode; call model.eval() first")
        memory.make(cache, [], page_size)
        quantized = quantization.options(weights, group, activations, quantize_tied)
        inputs = CacheInputs()
        program = trace.export(model)
        constants = constants_of(program, executor, reads_all=quantized is not None)
        stored = quantization.for_executor(quantized, is_native=constants is None)
        graph = import_with_cache(program, inputs, constants, quantization=stored)
        if constants is not None:
            # It has the same interface.
            graph = cast(CompiledGraph, DeviceGraph(graph, constants, takes_host_inputs=True))
        self._graph = graph
        self._device = None if constants is None else constants.device
        # In the order of the graph's inputs: the order in which the model computes its layers.
        self._layers = list(inputs.layers.values())
        self._cache, self._page_size = cache, page_size
        self.max_length: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.eos = _token_ids(getattr(model.generation_config, "eos_token_id", None))
        self.accuracy: Accuracy | None = None
        if validation != "none" or quantized:
            expected, found = self._sample_logits(model, tokens=64 if validation == "strict" else 8)
            if quantized:
                self.accuracy = quantization.accuracy(self._graph, [expected], [found])
            else:
                _compare(model, expected, found)

    def _sample_logits(self, model: Any, tokens: int) -> tuple[Any, Any]:
        """Logits after a prompt and after a decode step: the model's and the generator's."""
        import torch

        random = torch.Generator().manual_seed(0)
        tokens = min(tokens, self.max_length or tokens)
        sample = torch.randint(model.config.get_text_config().vocab_size, (tokens,), generator=random)
        with torch.no_grad():
            expected = model(input_ids=sample[None].to(device=self._device), use_cache=False).logits[0, -2:]
        session = self.session()
        prompt = session.step({0: sample[:-1].tolist()})
        return expected, torch.cat([prompt, session.step({0: sample[-1:].tolist()})])

    def session(self) -> GenerationSession:
        """A session without sequences."""
        from layerzero._generate import memory

        caches = memory.make(self._cache, self._layers, self._page_size, self._device)
        session = GenerationSession(self, caches)
        if self._device is not None:
            # Programs refer to the caches that they were made for.
            weakref.finalize(session, _forget, self._graph, caches).atexit = False
        return session

    @property
    def graph(self) -> str:
        """The graph, one line per node."""
        return self._graph.text

    @property
    def rewrites(self) -> list[str]:
        """What the passes replaced, in order."""
        return self._graph.rewrites

    @property
    def cached_plans(self) -> int:
        """The number of plans that are kept: one per combination of sizes that ran lately."""
        return self._graph.cached_plans

    @property
    def fallbacks(self) -> list[str]:
        """Steps on a device whose kernel failed, so that torch's own functions run instead, and why."""
        return getattr(self._graph, "fallbacks", [])

    def generate(self, tokens: Any, **options: Any) -> Any:
        """See `lz.generate`."""
        from layerzero._generate.generate import generate

        return generate(self, tokens, **options)

    def stream(self, tokens: Any, **options: Any) -> Iterator[Any]:
        """The tokens of `lz.generate`, one after the other: ints for one prompt, lists with `None` for finished sequences otherwise."""
        from layerzero._generate.generate import stream

        return stream(self, tokens, **options)

    @property
    def custom_generate(self) -> Callable[..., Any]:
        """The decoding loop for Transformers: ``model.generate(**inputs, custom_generate=generator.custom_generate)``."""
        from layerzero._generate.transformers import decoding_loop

        return decoding_loop(self)


class GenerationSession:
    """Sequences with their cached keys and values. One thread uses a session at a time."""

    def __init__(self, generator: Generator, memory: CacheMemory) -> None:
        self._generator = generator
        self._memory = memory
        self._lengths: dict[int, int] = {}

    @property
    def lengths(self) -> Mapping[int, int]:
        """The number of cached tokens per sequence."""
        return dict(self._lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of the caches."""
        return self._memory.nbytes

    def reserve(self, lengths: Mapping[int, int]) -> None:
        """Makes space for these lengths, so that no cache moves before they are reached."""
        limit = self._generator.max_length
        for sequence, length in lengths.items():
            if limit is not None and length > limit:
                raise ValueError(f"sequence {sequence} would have {length} tokens, but the model has {limit} positions")
        # The longest first: it determines the sizes of memory that all sequences share.
        for sequence, length in sorted(lengths.items(), key=lambda item: -item[1]):
            self._memory.reserve(sequence, length)

    def step(self, tokens: Mapping[int, Sequence[int]]) -> Any:
        """Appends tokens to sequences, new or known ones, and returns the logits after the last token of each, `[sequences, vocabulary]`."""
        import torch

        if not tokens or not all(len(new) for new in tokens.values()):
            raise ValueError("a step needs at least one token per sequence")
        lengths = {sequence: self._lengths.get(sequence, 0) + len(new) for sequence, new in tokens.items()}
        self.reserve(lengths)
        ends = [0]
        ids: list[int] = []
        slots, positions = [], []
        for sequence, new in tokens.items():
            start = self._lengths.get(sequence, 0)
            slots.append(self._memory.slots(sequence, start, start + len(new)))
            positions.append(torch.arange(start, start + len(new)))
            ids.extend(new)
            ends.append(ends[-1] + len(new))
        indptr, indices, last = self._memory.table(lengths)
        inputs = [
            torch.tensor([ids]),
            torch.cat(positions)[None],
            torch.tensor(ends[1:]) - 1,
            torch.cat(slots),
            torch.tensor([*ends, ends[-1]], dtype=torch.int32),
            indptr,
            indices,
            last,
            *self._memory.tensors,
        ]
        (logits,) = self._generator._graph.run(inputs)
        # Updated last: tokens of a failed step do not count.
        self._lengths.update(lengths)
        return logits

    def truncate(self, sequence: int, length: int) -> None:
        """Forgets the tokens of a sequence from `length` on."""
        if not 0 <= length <= self._lengths[sequence]:
            raise ValueError(f"sequence {sequence} has {self._lengths[sequence]} tokens, it cannot be truncated to {length}")
        self._lengths[sequence] = length

    def remove(self, sequence: int) -> None:
        """Removes a sequence; its memory is used for others."""
        self._memory.release(sequence)
        self._lengths.pop(sequence, None)


def _forget(graph: Any, caches: CacheMemory) -> None:
    graph.forget(caches.tensors)


def _compare(model: Any, expected: Any, found: Any) -> None:
    """Refuses logits that differ."""
    import torch

    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance * max(1.0, expected.abs().max().item())):
        difference = (found.double() - expected.double()).abs().max().item()
        raise GraphImportError(
            f"logits of the compiled {type(model).__name__} differ from the model's by up to {difference:.3g}; "
            "it cannot be used for generation"
        )


def _token_ids(given: Any) -> tuple[int, ...]:
    """Token ids from an int, a list or nothing."""
    if given is None:
        return ()
    return (int(given),) if isinstance(given, int) else tuple(int(token) for token in given)
