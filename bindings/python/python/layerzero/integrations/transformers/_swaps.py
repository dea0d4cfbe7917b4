"""What a swap did to a model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Swaps:
    """What is computed by our operations now, and what was left as it was, with the reasons. ``len`` counts the former."""

    swapped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.swapped)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} swapped, {len(self.left)} left"]
        return "\n".join(lines + [f"  left {name}: {reason}" for name, reason in self.left.items()])
