"""What texts became, so that the same prompt is not encoded twice. Entries are kept apart by the tokenizer's full digest and by
model, and are held against a fresh encoding the more rarely the longer they have held.
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
    """What the cache has done so far."""

    hits: int
    misses: int
    validations: int
    mismatches: int
    entries: int


class _Space:
    """The texts of one tokenizer, one model and one way of encoding."""

    def __init__(self) -> None:
        self.rows: OrderedDict[str, Any] = OrderedDict()
        self.hits = 0
        self.owed = 0.0


class TokenCache:
    """A bounded memory of encoded texts."""

    def __init__(self, max_entries: int = 4096, max_characters: int = 8192) -> None:
        """At most so many texts of each tokenizer; longer ones than `max_characters` are not kept."""
        self.max_entries = max_entries
        self.max_characters = max_characters
        self._spaces: dict[tuple[Any, ...], _Space] = {}
        self._lock = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "validations": 0, "mismatches": 0}
        self._rates: tuple[bool, float, float, float] | None = None

    def counters(self) -> Counters:
        """What happened so far."""
        with self._lock:
            entries = sum(len(space.rows) for space in self._spaces.values())
            return Counters(**self._counts, entries=entries)

    def clear(self) -> None:
        """Forgets every text, and reads the configuration again."""
        with self._lock:
            self._spaces.clear()
            self._rates = None

    def space(self, model: str, digest: str, special: bool, offsets: bool) -> tuple[Any, ...]:
        """The key of what may share entries."""
        isolated = self._settings()[0]
        return (model if isolated else "", digest, special, offsets)

    def serve(self, key: tuple[Any, ...], texts: list[str], encode: Encode) -> list[Any]:
        """What the texts became, in their order; `encode` is called once, with those that are not known."""
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
        for number, row in zip(missing, fresh, strict=False):
            rows[number] = row
        with self._lock:
            for number in missing:
                if len(texts[number]) <= self.max_characters:
                    space.rows[texts[number]] = rows[number]
            while len(space.rows) > self.max_entries:
                space.rows.popitem(last=False)
        # Rows are lists that a caller may change; the memory keeps its own.
        return [_copied(row) for row in rows]

    def _to_check(self, space: _Space, known: list[int]) -> list[int]:
        """Which of the known texts are encoded again: the shares of the configuration, counted over all hits."""
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
            f"remembered tokens of tokenizer {key[1][:12]} differ from fresh ones; they were thrown away",
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
