"""vLLM's tokenizer mode ``layerzero``: vLLM's own Hugging Face tokenizer, encoded and decoded by LayerZero."""

from typing import Any

from transformers import PreTrainedTokenizerFast
from vllm.tokenizers.hf import CachedHfTokenizer

from layerzero.integrations.tokenizers import wrap


class LayerZeroTokenizer(CachedHfTokenizer):
    """Loads tokenizers as the mode ``hf`` does. Slow ones, which have no definition, are left unchanged."""

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """The tokenizer of a model."""
        # The mode `hf` passes it too.
        options.setdefault("mistral_format", False)
        tokenizer = super().from_pretrained(*arguments, **options)
        return wrap(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerFast) else tokenizer
