"""Are two sources of random tensors one distribution? PackedAs of draws, without knowing which."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilewright.bench.oracle import shape_disagreement

DRAWS = 60
# So many draws agree by chance in one of 30,000 tosses of a coin.
SEEDS = 16
# Where eager's differ, ours get more of a chance: a coin that lies on one side in 97 of 100 tosses
# does so 16 times in a row more often than not.
PATIENCE = 2_048
# Normal deviates beyond which means are called different; chance gives it one time in 5e8.
LIMIT = 6.0

Draw = Callable[[int], Any]


def is_random(draw: Draw, seeds: int = SEEDS) -> bool:
    """Whether seeds give different results. Two alone may agree by chance: one coin, say."""
    first = draw(0)
    return any(not same_bits(first, draw(seed)) for seed in range(1, seeds))


def same_bits(one: Any, other: Any) -> bool:
    a, b = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
        x, y = x.to_dense(), y.to_dense()
        return bool(((x == y) | ((x != x) & (y != y))).all())
    if isinstance(x, float) and isinstance(y, float):
        return x == y or (math.isnan(x) and math.isnan(y))
    # Callables and other objects among the inputs compare by identity, which copies lose.
    return not isinstance(x, int | complex | str) or x == y


def random_disagreements(ours: Draw, eager: Draw) -> list[str]:
    """What tells our draws from eager's, one sentence each; empty when nothing does."""
    if not same_bits(ours(7), ours(7)):
        return ["the same seed gives two results"]
    if not is_random(ours, PATIENCE):
        return [f"{PATIENCE} seeds give one result"]
    a = [pytree.tree_leaves(ours(seed)) for seed in range(DRAWS)]
    b = [pytree.tree_leaves(eager(seed)) for seed in range(DRAWS)]
    if len(a[0]) != len(b[0]):
        return [f"{len(a[0])} results where eager gives {len(b[0])}"]
    found = []
    for index, (x, y) in enumerate(zip(a[0], b[0])):
        if not isinstance(y, torch.Tensor):
            continue
        problem = shape_disagreement(x, y) or _moments_disagree(
            [draw[index] for draw in a], [draw[index] for draw in b]
        )
        if problem:
            found.append(f"result {index}: {problem}")
    return found


def _moments_disagree(ours: list[torch.Tensor], eager: list[torch.Tensor]) -> str | None:
    if ours[0].numel() == 0:
        return None
    x, y = (torch.stack([_real(t) for t in draws]) for draws in (ours, eager))
    # Values are squeezed into (-1, 1): a Cauchy distribution has no moments of its own.
    scale = y.abs().nanmedian().clamp_min(1e-6)
    x, y = (t / (scale + t.abs()) for t in (x, y))
    for name, power in (("mean", 1), ("mean square", 2)):
        # One number per draw: elements of one draw may depend on each other, draws do not.
        p, q = ((t**power).mean(1) for t in (x, y))
        spread = float(((p.var() + q.var()) / DRAWS).sqrt())
        gap = abs(float(p.mean() - q.mean()))
        if gap > LIMIT * spread + 1e-5:
            return f"the {name} of squeezed draws is {gap / max(spread, 1e-9):.0f} deviations off"
    return None


def _real(tensor: torch.Tensor) -> torch.Tensor:
    dense = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return dense.detach().to(torch.float64).flatten()
