"""What guards say of sizes: how small and how large each symbol may be in a call that they let in.

Torch takes bounds from guards of one symbol such as `s0 <= 512`, not from `Min(512, s0) == s0` or
`4*s0 <= s1`. A guard of sums and products is one that `rest + s*c` is not negative; where `c` and
`rest` are bounded, so is the symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
from torch.utils._sympy import functions as F
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

_MIN, _MAX = (sympy.Min, F.Min), (sympy.Max, F.Max)
ROUNDS = 4  # a bound that follows from another one, and so on


def guarded_ranges(env: Any) -> dict[Any, Any]:
    """Torch's ranges of symbols, smaller where guards say so."""
    found = dict(env.var_to_range)
    gaps = [(s, *x) for g in env.guards for gap in _gaps(g.expr) for s, *x in _parts(gap)]
    for _ in range(ROUNDS):
        before = dict(found)
        for s, c, rest in gaps:
            if s in found:
                found[s] = _narrowed(found[s], c, rest, found)
        if found == before:
            break
    return found


def _gaps(e: Any) -> Iterator[Any]:
    """What is not negative where a condition holds."""
    if isinstance(e, sympy.And):
        for part in e.args:
            yield from _gaps(part)
    elif isinstance(e, (sympy.Le, sympy.Lt)):
        yield from _between(e.lhs, e.rhs, int(isinstance(e, sympy.Lt)))
    elif isinstance(e, (sympy.Ge, sympy.Gt)):
        yield from _between(e.rhs, e.lhs, int(isinstance(e, sympy.Gt)))
    elif isinstance(e, sympy.Eq):
        yield from _between(e.lhs, e.rhs, 0)
        yield from _between(e.rhs, e.lhs, 0)


def _between(small: Any, large: Any, least: int) -> Iterator[Any]:
    """The same of `small + least <= large`."""
    below: Any = small.args if isinstance(small, _MAX) else (small,)
    above: Any = large.args if isinstance(large, _MIN) else (large,)
    for a in below:
        for b in above:
            if all(s.is_integer for s in (b - a).free_symbols):
                yield sympy.expand(b - a - least)


def _parts(gap: Any) -> Iterator[tuple[Any, Any, Any]]:
    """(symbol, its factor, the rest) for each symbol that the gap is linear in."""
    for s in gap.free_symbols:
        c = gap.coeff(s, 1)
        rest = sympy.expand(gap - c * s)
        if c != 0 and s not in c.free_symbols and s not in rest.free_symbols:
            yield s, c, rest


def _narrowed(known: Any, c: Any, rest: Any, ranges: dict[Any, Any]) -> Any:
    """The range of a symbol of which `rest + s*c` is not negative."""
    factor, most = bound_sympy(c, ranges), bound_sympy(rest, ranges).upper
    if most in (int_oo, sympy.oo) or not (most.is_integer and most.is_finite):
        return known
    lower, upper = known.lower, known.upper
    if factor.upper < 0 and most >= 0:  # `rest` has room for so many
        upper = min(upper, sympy.Integer(int(most) // -int(factor.upper)))
    elif factor.is_singleton() and factor.lower > 0:
        lower = max(lower, sympy.Integer(-(int(most) // int(factor.lower))))
    return ValueRanges(lower, upper) if lower <= upper else known
