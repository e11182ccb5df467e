"""How large a size may be, where some of its symbols have any value up to a bound."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.atom import Atom, Quo, Sym
from tilewright.ir.dim import Dim


def greatest(x: Dim, most: Mapping[Sym, Dim]) -> Dim:
    """What `x` is at most, where each symbol of `most` is from 0 to its bound; over the other
    symbols. Terms are judged apart, so it may be more than any value of `x`."""
    return _extreme(x, most, True)


def _extreme(x: Dim, most: Mapping[Sym, Dim], high: bool) -> Dim:
    if isinstance(x, int) or not any(s in most for s in D.symbols(x)):
        return x
    total: Dim = 0
    for mono, c in x.terms:
        part: Dim = c
        for atom in mono:
            part = part * _of_atom(atom, most, high == (c > 0))
        total = total + part
    return total


def _of_atom(atom: Atom, most: Mapping[Sym, Dim], high: bool) -> Dim:
    """Of a factor, which is not negative."""
    x = D.from_atom(atom)
    if D.bounds(x)[0] < 0:
        raise Unsupported(f"it is not known how large {x} may be")
    if not any(s in most for s in D.symbols(x)):
        return x
    if isinstance(atom, Sym):
        return most[atom] if high else 0
    if not isinstance(atom, Quo):
        raise Unsupported(f"it is not known how large {x} may be")
    if atom.op == "mod":
        return _extreme(atom.b, most, True) - 1 if high else 0
    a = _extreme(atom.a, most, high)
    if atom.op == "floordiv":
        found = D.floordiv(a, D.maximum(_extreme(atom.b, most, not high), 1))
    else:
        of = D.minimum if atom.op == "min" else D.maximum
        found = of(a, _extreme(atom.b, most, high))
    return found if high else D.maximum(found, 0)


def guess(x: Dim, default: int = 64) -> int:
    """A number to plan with: symbols take a usual value within their bounds."""
    if isinstance(x, int):
        return x
    env: dict[str, int] = {}
    for s in D.symbols(x):
        lo, hi = D.bounds(D.as_int(s))
        env[s.name] = max(lo, min(hi, default))
    return max(0, int(D.evaluate(x, env)))
