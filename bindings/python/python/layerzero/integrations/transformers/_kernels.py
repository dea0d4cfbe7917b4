"""Layers for the mapping of Hugging Face's `kernels` package, which replaces layers that models mark as replaceable.

Models mark their RMS norms as ``RMSNorm`` or ``RMSNormZeroCentered`` and their rotation as ``rotary_pos_emb``. The names do not
say which formula a model has. So each layer is compared with the model's own on the first call, and the model's own runs where
they differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ._norms import mapped_norm
from ._rope import mapped_rope


class RMSNorm(torch.nn.Module):
    """The layer of ``RMSNorm`` and ``RMSNormZeroCentered``."""

    can_torch_compile = True
    has_backward = False

    def forward(self, hidden_states: torch.Tensor) -> Any:
        return mapped_norm(self, hidden_states)


class RotaryPositionEmbedding(torch.nn.Module):
    """The layer of ``rotary_pos_emb``."""

    can_torch_compile = True
    has_backward = False

    def forward(self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1) -> Any:
        return mapped_rope(self, q, k, cos, sin, unsqueeze_dim)


class _Repository:
    """Returns a layer of this module, where the mapping expects one that is downloaded."""

    def __init__(self, layer: type[torch.nn.Module]) -> None:
        self.layer = layer
        self.layer_name = layer.__name__

    def load(self) -> type[torch.nn.Module]:
        return self.layer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Repository) and self.layer is other.layer

    def __hash__(self) -> int:
        return hash(self.layer)

    def __deepcopy__(self, memo: Any) -> _Repository:
        return self

    def __str__(self) -> str:
        return f"layerzero, layer `{self.layer_name}`"


_LAYERS = {
    "RMSNorm": RMSNorm,
    "RMSNormZeroCentered": RMSNorm,
    "rotary_pos_emb": RotaryPositionEmbedding,
}


def kernel_mapping(devices: Iterable[str] = ("cpu", "cuda")) -> dict[str, dict[str, Any]]:
    """LayerZero's layers for ``kernels.use_kernel_mapping`` and ``kernels.register_kernel_mapping``, for inference.

    There is no backward: ``kernelize(model, mode=Mode.TRAINING)`` keeps the layers of the model.
    """
    from kernels import Mode

    modes = (Mode.INFERENCE, Mode.INFERENCE | Mode.TORCH_COMPILE)
    return {
        name: {device: {mode: _Repository(layer) for mode in modes} for device in devices} for name, layer in _LAYERS.items()
    }
