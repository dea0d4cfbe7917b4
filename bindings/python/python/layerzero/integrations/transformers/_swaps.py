"""The result of replacing modules of a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Swaps:
    """What LayerZero's operations compute now, and what was left unchanged, with the reasons. ``len`` counts the former."""

    swapped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.swapped)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} swapped, {len(self.left)} left"]
        return "\n".join(lines + [f"  left {name}: {reason}" for name, reason in self.left.items()])
