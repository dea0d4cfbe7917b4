"""The token cache: texts and their tokens, so that the same prompt is not encoded twice. Entries are keyed by
the tokenizer's digest and the model. Cache hits are validated against a fresh encoding at a rate that falls
with the number of hits.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from layerzero import _native

Encode = Callable[[list[str]], list[Any]]


class Counters(NamedTuple):
    """Counters of the cache."""

    hits: int
    misses: int
    validations: int
    mismatches: int
    entries: int


class _Space:
    """The entries of one tokenizer, one model and one set of encoding options."""

    def __init__(self) -> None:
        self.rows: OrderedDict[str, Any] = OrderedDict()
        self.hits = 0
        self.owed = 0.0


class TokenCache:
    """A bounded cache of encoded texts."""

    def __init__(self, max_entries: int = 4096, max_characters: int = 8192) -> None:
        """`max_entries` texts per tokenizer; texts longer than `max_characters` are not cached."""
        self.max_entries = max_entries
        self.max_characters = max_characters
        self._spaces: dict[tuple[Any, ...], _Space] = {}
        self._lock = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "validations": 0, "mismatches": 0}
        self._rates: tuple[bool, float, float, float] | None = None

    def counters(self) -> Counters:
        """The counters so far."""
        with self._lock:
            entries = sum(len(space.rows) for space in self._spaces.values())
            return Counters(**self._counts, entries=entries)

    def clear(self) -> None:
        """Removes all entries, and reads the settings again."""
        with self._lock:
            self._spaces.clear()
            self._rates = None

    def space(self, model: str, digest: str, special: bool, offsets: bool) -> tuple[Any, ...]:
        """The key of entries that may be shared."""
        isolated = self._settings()[0]
        return (model if isolated else "", digest, special, offsets)

    def serve(self, key: tuple[Any, ...], texts: list[str], encode: Encode) -> list[Any]:
        """The tokens of the texts, in order; `encode` is called once, with the cache misses and the hits to validate."""
        if self.max_entries <= 0:
            return encode(texts)
        with self._lock:
            space = self._spaces.setdefault(key, _Space())
            rows: list[Any] = [space.rows.get(text) for text in texts]
            missing = [number for number, row in enumerate(rows) if row is None]
            checked = self._to_check(space, [number for number, row in enumerate(rows) if row is not None])
            self._counts["hits"] += len(texts) - len(missing)
            self._counts["misses"] += len(missing)
        fresh = encode([texts[number] for number in missing + checked]) if missing or checked else []
        for number, row in zip(checked, fresh[len(missing) :], strict=True):
            if row != rows[number]:
                self._mismatch(key)
                return encode(texts)
        # Rows are lists that a caller may change, so the cache returns copies of its rows, and keeps copies of new ones.
        rows = [row if row is None else _copied(row) for row in rows]
        for number, row in zip(missing, fresh, strict=False):
            rows[number] = row
        kept = [number for number in missing if len(texts[number]) <= self.max_characters]
        copies = [_copied(rows[number]) for number in kept]
        with self._lock:
            for number, copy in zip(kept, copies, strict=True):
                space.rows[texts[number]] = copy
            while len(space.rows) > self.max_entries:
                space.rows.popitem(last=False)
        return rows

    def _to_check(self, space: _Space, known: list[int]) -> list[int]:
        """Selects the cache hits to validate, at the configured rates."""
        _, initial, warmup, stable = self._settings()
        checked = []
        for number in known:
            rate = initial if space.hits < 100 else warmup if space.hits < 1100 else stable
            space.hits += 1
            space.owed += rate
            if space.owed >= 1.0 - 1e-9:
                space.owed -= 1.0
                checked.append(number)
        self._counts["validations"] += len(checked)
        return checked

    def _mismatch(self, key: tuple[Any, ...]) -> None:
        with self._lock:
            self._counts["mismatches"] += 1
            self._spaces.pop(key, None)
        warnings.warn(
            f"cached tokens of tokenizer {key[1][:12]} differ from a fresh encoding; its cache entries were removed",
            RuntimeWarning,
            stacklevel=4,
        )

    def _settings(self) -> tuple[bool, float, float, float]:
        if self._rates is None:
            values = {key: value for key, value, _ in _native.config() if key.startswith("tokenizer_cache.")}
            rates = tuple(
                float(values.get(f"tokenizer_cache.validation_rate_{name}", default))
                for name, default in (("initial", 0.1), ("warmup", 0.01), ("stable", 0.001))
            )
            isolated = values.get("tokenizer_cache.enable_namespace_isolation", "true") == "true"
            self._rates = (isolated, rates[0], rates[1], rates[2])
            _native.set_validation_rates(*rates)
        return self._rates


def _copied(row: Any) -> Any:
    return tuple(list(part) for part in row) if isinstance(row, tuple) else list(row)
