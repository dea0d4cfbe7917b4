"""SGLang: an attention backend ``layerzero``.

SGLang loads the plugin by its entry point (``sglang.srt.plugins``); nothing needs to be called. The backend runs if it is selected:
``python -m sglang.launch_server ... --attention-backend layerzero --disable-cuda-graph``.
"""

from __future__ import annotations

from typing import Any

NAME = "layerzero"


def register() -> None:
    """Registers the backend, and its name as a choice of the command line."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(NAME)(_backend)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


def _backend(model_runner: Any) -> Any:
    # Imports torch and much of SGLang, which processes without attention do not need.
    from .sglang_attention import LayerZeroAttnBackend

    return LayerZeroAttnBackend(model_runner)
