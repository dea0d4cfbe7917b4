"""Traces a causal language model of Transformers: every attention becomes one operator that reads and writes a KV cache."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.export import Dim
from transformers import AttentionInterface

from layerzero._native import GraphImportError

# Registered as an attention function only: without a mask function Transformers makes no masks, and the operator is causal itself.
NAME = "layerzero_cached"
MAX_TOKENS = 2**20

# Keywords without an effect on this function. Any other keyword may change the result and is refused.
_WITHOUT_EFFECT = frozenset(
    {
        "position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states", "return_dict", "cu_seq_lens_q",
        "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "deterministic", "num_items_in_batch", "logits_to_keep", "labels",
        "return_loss", "output_router_logits", "token_type_ids",
    }
)  # fmt: skip

_LIBRARY = torch.library.Library("layerzero", "FRAGMENT")
_LIBRARY.define(
    "cached_attention(Tensor q, Tensor k, Tensor v, int layer, float? scale, int window, float soft_cap) -> Tensor"
)


@torch.library.register_fake("layerzero::cached_attention", lib=_LIBRARY)
def _fake(q: Any, k: Any, v: Any, layer: int, scale: float | None, window: int, soft_cap: float) -> Any:
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as models of Transformers call it, while they are traced."""
    name = type(module).__name__
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise GraphImportError(f"{name} has no layer index, so its keys and values have no cache")
    if attention_mask is not None or is_causal is False or not getattr(module, "is_causal", True):
        raise GraphImportError(f"{name} is not plain causal attention: it has a mask of its own or sees later tokens")
    for keyword, given in keywords.items():
        if keyword not in _WITHOUT_EFFECT and given is not None and given is not False:
            raise GraphImportError(f"{name} passes the attention keyword `{keyword}`, which may change the result")
    expected = _layer_type(module, layer)
    if expected == "sliding_attention" and sliding_window is None or expected not in (None, "sliding_attention", "full_attention"):
        raise GraphImportError(f"{name} has layers of type {expected}, which generation does not support")
    # Transformers counts the query's own position, the operation those before it.
    window = -1 if sliding_window is None else sliding_window - 1
    operator = torch.ops.layerzero.cached_attention.default
    return operator(query, key, value, layer, scaling, window, softcap or 0.0), None


def _layer_type(module: torch.nn.Module, layer: int) -> str | None:
    types = getattr(getattr(module, "config", None), "layer_types", None)
    return types[layer] if types is not None and layer < len(types) else None


class _Step(torch.nn.Module):
    """Packed tokens of all sequences, their positions, and the tokens whose logits are needed."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        keywords = {"logits_to_keep": rows} if self.selects else {}
        logits = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False, **keywords).logits
        return logits[0] if self.selects else logits[0][rows]


def export(model: torch.nn.Module) -> torch.export.ExportedProgram:
    """The program of one step: packed tokens to logits."""
    parameters = inspect.signature(model.forward).parameters
    if "position_ids" not in parameters:
        raise GraphImportError(f"{type(model).__name__} takes no position_ids, which packed sequences need")
    AttentionInterface.register(NAME, attention_forward)
    previous = model.config._attn_implementation
    experts = getattr(model.config, "_experts_implementation", None)
    model.set_attn_implementation(NAME)
    if experts is not None:
        # The other implementations have sizes that depend on the routing.
        model.set_experts_implementation("batched_mm")
    tokens = Dim("tokens", min=2, max=MAX_TOKENS)
    device = next((parameter.device for parameter in model.parameters()), None)
    samples = tuple(
        torch.tensor(sample, dtype=torch.int64, device=device) for sample in ([[0] * 5], [[0, 1, 2, 3, 4]], [2, 4, 4])
    )
    shapes = ({1: tokens}, {1: tokens}, {0: Dim("rows", min=2, max=MAX_TOKENS)})
    try:
        with torch.no_grad():
            program = torch.export.export(_Step(model).eval(), samples, dynamic_shapes=shapes, strict=False)
    finally:
        model.set_attn_implementation(previous)
        if experts is not None:
            model.set_experts_implementation(experts)
    _check(model, [node for node in program.graph.nodes if "cached_attention" in str(node.target)])
    return program


def _check(model: torch.nn.Module, attentions: list[torch.fx.Node]) -> None:
    """Refuses models whose attention was not traced, or whose window was not."""
    name = type(model).__name__
    if not attentions:
        raise GraphImportError(f"{name} computes attention itself instead of calling Transformers' attention functions")
    config = model.config.get_text_config()
    windows = [node.args[5] for node in attentions]
    if getattr(config, "sliding_window", None) and not hasattr(config, "layer_types") and max(windows) < 0:
        raise GraphImportError(f"{name} has a sliding window that it does not pass to its attention")
