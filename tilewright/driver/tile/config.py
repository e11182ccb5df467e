"""`tw.Config`: one way to choose the constants of a kernel; and times of several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.driver.tile.devices import gpu_among

Times = tuple[float, float, float]  # the middle one, a fast and a slow one, in milliseconds


class Config:
    """One way to choose the constants of a kernel (`kwargs`). The other fields say how a GPU shares
    out work and are ignored by a CPU; `pre_hook` is called with all arguments before a launch."""

    def __init__(
        self,
        kwargs: Mapping[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Callable[..., Any] | None = None,
        ir_override: str | None = None,
    ):
        self.kwargs = dict(kwargs)
        self.num_warps = num_warps
        self.num_stages = num_stages
        self.num_ctas = num_ctas
        self.maxnreg = maxnreg
        self.pre_hook = pre_hook
        self.ir_override = ir_override

    def all_kwargs(self) -> dict[str, Any]:
        """What a launch is given."""
        options = {
            "num_warps": self.num_warps,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
            "maxnreg": self.maxnreg,
            "ir_override": self.ir_override,
        }
        return {**self.kwargs, **{k: v for k, v in options.items() if v is not None}}

    def __str__(self) -> str:
        fields = {
            **self.kwargs,
            "num_warps": self.num_warps,
            "num_ctas": self.num_ctas,
            "num_stages": self.num_stages,
            "maxnreg": self.maxnreg,
            "ir_override": self.ir_override,
        }
        return ", ".join(f"{k}: {v}" for k, v in fields.items())

    def __repr__(self) -> str:
        return f"Config({self})"

    def _identity(self) -> tuple[Any, ...]:
        return (*self.all_kwargs().items(), self.pre_hook)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())


@dataclass(frozen=True)
class Launch:
    """A launch that configurations are timed for; `key` is what it has in common with others."""

    args: Sequence[Any]
    named: Mapping[str, Any]
    grid: Any
    kwargs: Mapping[str, Any]
    key: tuple[Any, ...]

    @property
    def gpu(self) -> int | None:
        return gpu_among((*self.named.values(), *self.kwargs.values()))


# Another configuration than the first has to be faster by this part: clocks are noisy.
CLEARLY = 0.02
# Configurations that are slower by more than this are out: they would lose another race too.
CLOSE = 0.10


@dataclass
class Timings:
    """What is known of configurations: times, infinite ones where one fails, and why it does."""

    times: dict[Config, Times] = field(default_factory=dict)
    problems: dict[Config, Exception] = field(default_factory=dict)
    timed: int = 0  # now, not read from the disk; those of a last race once more
    last: list[Config] = field(default_factory=list)  # of a last race, whose times decide
    usual: Config | None = None  # the first that is listed

    @property
    def best(self) -> Config:
        """The fastest; the one that is listed first where none is clearly faster. Where all fail,
        what the first of them says is raised."""
        right = [c for c in self.last or self.times if c not in self.problems]
        if not right:
            raise next(iter(self.problems.values()))
        if self.usual in right:
            median, fast, _ = self.times[self.usual]
            # Noise only makes slower: what is faster is so in its undisturbed calls too.
            clearly = [
                c
                for c in right
                if self.times[c][0] <= (1 - CLEARLY) * median and self.times[c][1] < fast
            ]
            right = clearly or [self.usual]
        return min(right, key=lambda c: self.times[c])

    def close(self, most: int) -> list[Config]:
        """The fastest few and the one that is listed first, those that are nearly as fast as the
        fastest."""
        right = [c for c in self.times if c not in self.problems]
        order = sorted(right, key=lambda c: self.times[c])
        enough = (1 + CLOSE) * self.times[order[0]][0] if order else 0.0
        near = [c for c in order if self.times[c][0] <= enough]
        return [c for k, c in enumerate(near) if k < most or c == self.usual]
