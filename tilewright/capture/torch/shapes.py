"""Symbolic sizes and numbers: torch's sympy expressions as dims, and where values come from.

The value of a symbol is known at the call only. It comes from one of these places: a number among
the arguments, an axis of a tensor among them, or what a host call returns (`symbol_from`); another
dim that it was found to equal (`Shapes.define`); or an expression of torch over symbols that dims
cannot express (`Shapes.opaque`), which is evaluated once its symbols are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as F
from torch.utils._sympy.numbers import int_oo

from tilewright.capture.torch.size_bounds import guarded_ranges
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.types import i64

# Sizes above this are as good as unbounded; sums and products of bounds stay exact below it.
UNBOUNDED = 1 << 48


class Shapes:
    """Turns sizes into dims; expressions that dims cannot express get a name and are evaluated per
    call.
    """

    def __init__(self) -> None:
        self.opaque: dict[sympy.Expr, str] = {}
        self._symbols: dict[sympy.Symbol, Dim] = {}
        self._known: set[str] = set()  # symbols read from data that have a source
        self._examples: dict[str, int] = {}  # what symbols were when the program was captured
        self.ranges: Mapping[Any, Any] = {}  # torch's bounds of symbols, instead of the capture's
        self._guarded: Mapping[Any, Any] | None = None  # the capture's, once they were needed

    def dim(self, x: Any) -> Dim:
        """An int or SymInt as a dim."""
        if isinstance(x, torch.SymInt):
            return self.expression(x.node.expr, x.node.shape_env)
        return int(x)

    def dims(self, xs: Any) -> tuple[Dim, ...]:
        return tuple(self.dim(x) for x in xs)

    def expression(self, e: sympy.Expr, env: Any) -> Dim:
        out = self._convert(e, env)
        if out is not None:
            return out
        name = self.opaque.setdefault(e, f"e{len(self.opaque)}")
        bounds = env.bound_sympy(e) if env is not None else None
        lo, hi = limits(bounds)
        return D.sym(name, lo, hi)

    def unbound(self, e: sympy.Expr) -> set[sympy.Symbol]:
        """Symbols of the expression that are read from data and have no source yet."""
        return {s for s in e.free_symbols if _from_data(s) and str(s) not in self._known}  # type: ignore[misc]

    def example(self, d: Dim) -> int | None:
        """What the dim was when the program was captured; None where torch does not say."""
        if all(s.name in self._examples for s in D.symbols(d)):
            return int(D.evaluate(d, self._examples))
        return None

    def bind(self, names: Iterable[str]) -> None:
        """These symbols get their values from a host call."""
        self._known.update(names)

    def forget(self, names: Iterable[str]) -> None:
        """These symbols have no source after all."""
        self._known.difference_update(names)

    def define(self, s: sympy.Symbol, value: Dim) -> None:
        """The symbol is this dim: torch gave the size of a result a name, and ours is computed."""
        self._symbols[s] = value
        self._known.add(str(s))

    def symbols(self, e: sympy.Expr) -> dict[str, Dim]:
        """What the symbols of an expression are, by torch's names; floats are left out."""
        return {str(s): self._symbols[s] for s in e.free_symbols if s in self._symbols}  # type: ignore[index]

    def _symbol(self, s: sympy.Symbol, env: Any) -> Dim:
        if s not in self._symbols:
            bounds = self.ranges.get(s)
            if bounds is None:
                if self._guarded is None:
                    self._guarded = guarded_ranges(env) if env is not None else {}
                bounds = self._guarded.get(s)
            lo, hi = limits(bounds)
            self._symbols[s] = lo if hi is not None and lo == hi else D.sym(str(s), lo, hi)
            example = getattr(env, "backed_var_to_val", {}).get(s)
            if example is not None:
                self._examples[str(s)] = int(example)
        return self._symbols[s]

    def _convert(self, e: Any, env: Any) -> Dim | None:
        if isinstance(e, (int, sympy.Integer)):
            return int(e)
        if isinstance(e, sympy.Symbol):
            return self._symbol(e, env)
        args = [self._convert(a, env) for a in e.args]
        if not args or any(a is None for a in args):
            return None
        xs: list[Any] = args
        if isinstance(e, sympy.Add):
            return sum(xs[1:], xs[0])
        if isinstance(e, sympy.Mul):
            out = xs[0]
            for x in xs[1:]:
                out = out * x
            return out
        if isinstance(e, (sympy.Pow, F.PowByNatural)) and isinstance(xs[1], int) and xs[1] > 0:
            out = xs[0]
            for _ in range(xs[1] - 1):
                out = out * xs[0]
            return out
        if isinstance(e, (F.FloorDiv, F.CleanDiv)) and D.bounds(xs[1])[0] > 0:
            return D.floordiv(xs[0], xs[1])
        if isinstance(e, (F.Mod, F.PythonMod)) and D.bounds(xs[1])[0] > 0:
            return D.mod(xs[0], xs[1])
        if isinstance(e, F.ModularIndexing):
            return D.mod(D.floordiv(xs[0], xs[1]), xs[2])
        if isinstance(e, (sympy.Max, F.Max)):
            out = xs[0]
            for x in xs[1:]:
                out = D.maximum(out, x)
            return out
        if isinstance(e, (sympy.Min, F.Min)):
            out = xs[0]
            for x in xs[1:]:
                out = D.minimum(out, x)
            return out
        if isinstance(e, F.Identity):
            return xs[0]
        return None


def _from_data(s: Any) -> bool:
    """Torch's names of integers that no argument determines: u0, u1, …"""
    return str(s).startswith("u")


def limits(bounds: Any) -> tuple[int, int | None]:
    """Inclusive bounds from torch's value range; None above means unbounded."""
    if bounds is None:
        return 0, None
    lo = None if bounds.lower in (-int_oo, -sympy.oo) else int(bounds.lower)
    hi = None if bounds.upper in (int_oo, sympy.oo) else int(bounds.upper)
    if lo is None or lo <= -UNBOUNDED:  # a number of the user's: whatever 64 bits hold
        return int(i64.lowest), (int(i64.highest) if hi is None or hi >= UNBOUNDED else hi)
    return lo, (None if hi is not None and hi >= UNBOUNDED else hi)


def hint(x: Any) -> int:
    """A plausible value of a size: what it was when the program was captured."""
    if isinstance(x, torch.SymInt):
        found = x.node.hint
        return 2 if found is None else int(found)
    return int(x)
