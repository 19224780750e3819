"""What a scenario finds: a number beside its bound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    bound: float | None = None
    at_least: bool = False

    @property
    def is_within(self) -> bool:
        """Whether the value keeps its bound, if it has one."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        text = f"{self.name:<66} {self.value:>9.2f} {self.unit:<8}"
        if self.bound is None:
            return text
        return (
            text + f" {'at least' if self.at_least else 'at most'} {self.bound:g}: {'yes' if self.is_within else 'NO'}"
        )


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]
