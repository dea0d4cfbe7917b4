"""Registers ``attn_implementation="layerzero"`` and ``experts_implementation="layerzero"`` with Transformers.

A model that does not use the table of attention functions keeps its own attention: its configuration gets
that implementation's name, so that its masks have the expected form. A model that uses the table gets masks
in the form of ``sdpa`` if its authors support that, else of ``eager``.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask, sdpa_mask

from ._attention import attention_forward
from ._experts import experts_forward
from ._sources import own_attention, takes_sdpa_masks

try:
    from transformers.integrations.moe import ExpertsInterface as _ExpertsInterface
except ImportError:
    # Before Transformers 5, each model runs its experts itself.
    _ExpertsInterface = None

NAME = "layerzero"


def mask(*arguments: Any, config: PreTrainedConfig | None = None, **keywords: Any) -> torch.Tensor | None:
    """Makes a mask in the form that the model expects."""
    make = sdpa_mask if config is not None and takes_sdpa_masks(type(config)) else eager_mask
    result: torch.Tensor | None = make(*arguments, config=config, **keywords)
    return result


_own_choice = PreTrainedModel.get_correct_attn_implementation


def _choice(self: PreTrainedModel, requested_attention: str | None, is_init_check: bool = False) -> str:
    """The attention implementation of a model; LayerZero's only if the model can use it."""
    if requested_attention == NAME and (reason := own_attention(type(self))) is not None:
        own: str = _own_choice(self, None, is_init_check)
        warnings.warn(
            f"{type(self).__name__} {reason}: it keeps its own ({own}), and layerzero is not used for its attention",
            stacklevel=2,
        )
        return own
    if requested_attention == NAME:
        # Computed and cached here, so that torch.compile need not trace it.
        takes_sdpa_masks(type(self.config))
    result: str = _own_choice(self, requested_attention, is_init_check)
    return result


def register() -> None:
    """Registers ``attn_implementation="layerzero"`` and the function that makes its masks, and ``experts_implementation="layerzero"``."""
    AttentionInterface.register(NAME, attention_forward)
    # Without a mask function Transformers would pass no mask, and padding would be attended to.
    AttentionMaskInterface.register(NAME, mask)
    if _ExpertsInterface is not None:
        _ExpertsInterface.register(NAME, experts_forward)
    # Transformers has no hook to decide whether a model supports an implementation.
    PreTrainedModel.get_correct_attn_implementation = _choice
