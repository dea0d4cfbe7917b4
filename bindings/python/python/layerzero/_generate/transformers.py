"""The decoding loop of a generator for `generate` of Transformers, which keeps its own logits processors, criteria and streamers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from layerzero._generate.generator import Generator


def decoding_loop(generator: Generator) -> Callable[..., Any]:
    """A function for the argument `custom_generate` of `model.generate`."""

    def decode(
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        if generation_config.num_beams > 1 or generation_config.return_dict_in_generate:
            raise NotImplementedError("a compiled generator has neither beam search nor return_dict_in_generate")
        mask = model_kwargs.get("attention_mask")
        keep = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
        session = generator.session()
        tokens = {row: input_ids[row][keep[row]].tolist() for row in range(input_ids.shape[0])}
        pad = _pad(generation_config)
        while tokens:
            rows = list(tokens)
            logits = session.step(tokens)
            scores = logits.new_zeros((input_ids.shape[0], logits.shape[-1]), dtype=torch.float32)
            scores[rows] = logits.float()
            if logits_processor is not None:
                scores = logits_processor(input_ids, scores)
            if generation_config.do_sample:
                sampled = torch.multinomial(scores.softmax(-1), 1)[:, 0]
            else:
                sampled = scores.argmax(-1)
            finished = torch.ones(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
            finished[rows] = False
            sampled = torch.where(finished, pad, sampled)
            input_ids = torch.cat([input_ids, sampled[:, None]], dim=-1)
            if streamer is not None:
                streamer.put(sampled.cpu())
            stops = stopping_criteria(input_ids, None) if stopping_criteria is not None else finished
            tokens = {row: [int(sampled[row])] for row in rows if not stops[row]}
        if streamer is not None:
            streamer.end()
        return input_ids

    return decode


def _pad(config: Any) -> int:
    """The token that fills finished sequences."""
    for given in (config.pad_token_id, config.eos_token_id):
        if given is not None:
            return int(given[0] if isinstance(given, (list, tuple)) else given)
    return 0
