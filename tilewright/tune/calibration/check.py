"""Does the cost model rank schedules well by a target's numbers? Variants of some products are
measured, and compared with what the model says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from statistics import fmean

from tilewright.ir.target import Target
from tilewright.kernel.cost import cost
from tilewright.tune.calibration.products import Racing, product, raced
from tilewright.tune.candidates import Candidate, candidates
from tilewright.tune.choose import ranked

# Rows, products of a sum and columns: as many as programs have, with sizes that fill no tile among
# them. Columns are cut to whole blocks.
SIZES = (
    (512, 512, 480),
    (128, 768, 768),
    (196, 256, 1024),
    (49, 512, 2048),
    (784, 128, 512),
    (64, 1024, 1024),
    (37, 300, 960),
    (1000, 64, 256),
    (256, 1152, 256),
    (3136, 64, 64),
)
# Picks by the model may be slower than the rules' schedules by this part, in the geometric mean.
WORSE = 0.01


@dataclass(frozen=True)
class Ranking:
    """How well estimates order what was measured: rank correlations (1: alike, 0: by chance), one
    for each group of several variants, and how many times faster the model's picks are than the
    schedules by the rules."""

    correlations: tuple[float, ...]
    gains: tuple[float, ...]

    @property
    def correlation(self) -> float:
        return fmean(self.correlations) if self.correlations else 0.0

    @property
    def gain(self) -> float:
        return exp(fmean(map(log, self.gains))) if self.gains else 1.0

    @property
    def good(self) -> bool:
        return bool(self.gains) and self.gain >= 1 - WORSE


def rankings(
    targets: Sequence[Target],
    race: Racing = raced,
    tick: Callable[[], None] = lambda: None,
    late: Callable[[], bool] = lambda: False,
) -> list[Ranking]:
    """Of the same variants by the numbers of each target; the last one's tiles make the variants.
    All is measured on one thread."""
    alone = [replace(t, cores=1) for t in targets]
    made = alone[-1]
    wide = made.tiles[0].vectors * made.lanes(32)
    correlations: list[list[float]] = [[] for _ in targets]
    gains: list[list[float]] = [[] for _ in targets]
    for m, k, n in SIZES:
        if late():
            break
        group = product(m, k, -(-n // wide) * wide, wide)
        found = candidates(group, made, thorough=True)
        took = race([c.nest for c in found], made)
        for j, t in enumerate(alone):
            here = [replace(c, cost=cost(c.nest, t)) for c in found]
            estimates = [c.cost.cycles for c in here]
            if len(found) > 2:
                correlations[j].append(rank_correlation(estimates, took))
            gains[j].append(took[0] / took[_place(ranked(here)[0], here)])
        tick()
    pairs = zip(correlations, gains, strict=True)
    return [Ranking(tuple(c), tuple(g)) for c, g in pairs]


def _place(one: Candidate, of: Sequence[Candidate]) -> int:
    return next(k for k, c in enumerate(of) if c is one)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's: how far two lists have the same order; equal numbers share a rank."""
    x, y = _ranks(a), _ranks(b)
    mx, my = fmean(x), fmean(y)
    both = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    own = sqrt(sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y))
    return both / own if own else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]
