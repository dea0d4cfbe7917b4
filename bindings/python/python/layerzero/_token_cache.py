"""The token cache: texts and their tokens, so that the same prompt is not encoded twice. Entries are keyed by
the tokenizer's digest and the model. Cache hits are validated against a fresh encoding at a rate that falls
with the number of hits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from layerzero import _native


class Counters(NamedTuple):
    """Counters of the cache."""

    hits: int
    misses: int
    validations: int
    mismatches: int
    entries: int


class TokenCache:
    """A bounded cache of encoded texts."""

    def __init__(self, max_entries: int = 4096, max_characters: int = 8192) -> None:
        """`max_entries` texts per tokenizer; texts longer than `max_characters` are not cached."""
        self._entries = _native.TokenCache(max_entries, max_characters)
        # Whether models are isolated; read with the other settings on first use.
        self._isolated: bool | None = None

    def counters(self) -> Counters:
        """The counters so far."""
        return Counters(*self._entries.counters())

    def clear(self) -> None:
        """Removes all entries, and reads the settings again."""
        self._entries.clear()
        self._isolated = None

    def encode(self, texts: list[str], tokenizer: _native.Tokenizer, model: str, special: bool, offsets: bool) -> Any:
        """The ids of texts as a list per text; with `offsets`, a tuple of them and of the byte ranges."""
        isolated = self._read_settings() if self._isolated is None else self._isolated
        return self._entries.encode(texts, tokenizer, model if isolated else "", special, offsets)

    def _read_settings(self) -> bool:
        values = {key: value for key, value, _ in _native.config() if key.startswith("tokenizer_cache.")}
        initial, warmup, stable = (
            float(values.get(f"tokenizer_cache.validation_rate_{name}", default))
            for name, default in (("initial", 0.1), ("warmup", 0.01), ("stable", 0.001))
        )
        self._entries.set_rates(initial, warmup, stable)
        _native.set_validation_rates(initial, warmup, stable)
        self._isolated = values.get("tokenizer_cache.enable_namespace_isolation", "true") == "true"
        return self._isolated
