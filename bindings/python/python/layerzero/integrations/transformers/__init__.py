"""Transformers: ``attn_implementation="layerzero"``, ``experts_implementation="layerzero"``, and RMSNorm and RoPE by LayerZero's
operations.

`register()` once; then ``AutoModel.from_pretrained(..., attn_implementation="layerzero", experts_implementation="layerzero")``, or
``model.set_attn_implementation("layerzero")``. There is no backward: use it under ``torch.no_grad()``.

A model gives the same results as without the integration. Models that compute attention themselves keep their
own attention, with a warning; arguments that the operations cannot express are refused. ``lz
check-transformers`` compares every architecture of the installed Transformers.
"""

from ._attention import attention_forward
from ._experts import experts_forward
from ._norms import swap_norms
from ._register import NAME, register
from ._rope import swap_rope
from ._swaps import Swaps

__all__ = ["NAME", "Swaps", "attention_forward", "experts_forward", "register", "swap_norms", "swap_rope"]
