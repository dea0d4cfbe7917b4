"""Transformers: ``attn_implementation="layerzero"``, ``experts_implementation="layerzero"``, and RMSNorm and RoPE by LayerZero's
operations.

`register()` once; then ``AutoModel.from_pretrained(..., attn_implementation="layerzero", experts_implementation="layerzero")``, or
``model.set_attn_implementation("layerzero")``. There is no backward: use it under ``torch.no_grad()``.

`kernel_mapping()` has the norms and the rotation as layers for the mapping of the `kernels` package. Inside `paged_attention()`
continuous batching runs its paged attention by LayerZero's operations.

A model gives the same results as without the integration. Models that compute attention themselves keep their
own attention, with a warning; arguments that the operations cannot express are refused. ``lz
check-transformers`` compares every architecture of the installed Transformers.
"""

from ._attention import attention_forward
from ._experts import experts_forward
from ._kernels import kernel_mapping
from ._norms import swap_norms
from ._paged import paged_attention
from ._register import NAME, register
from ._rope import swap_rope
from ._swaps import Swaps

__all__ = ["NAME", "Swaps", "attention_forward", "experts_forward", "kernel_mapping", "paged_attention", "register", "swap_norms", "swap_rope"]
