"""The variables of statements: those of their loops, and those that they take from outside."""

from __future__ import annotations

from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.kernel.nest import Atomic, Loop, Prefetch, Stmt, Store, bodies, own_values


def inner_vars(s: Stmt) -> set[Sym]:
    """Variables of the loops under (and at) a statement."""
    own = {s.var} if isinstance(s, Loop) else set()
    return own.union(*(inner_vars(x) for body in bodies(s) for x in body))


def free_vars(s: Stmt) -> set[Sym]:
    """Symbols that a statement needs from outside."""
    if isinstance(s, Prefetch):
        return set(s.load.symbols())
    own = set().union(*(v.symbols() for v in own_values(s)))
    if isinstance(s, (Store, Atomic)):
        own = own.union(*(D.symbols(i) for i in s.index))
    if isinstance(s, Atomic) and s.result is not None:
        own = own.union(*(D.symbols(i) for i in s.result[1]))
    inside = set().union(*(free_vars(x) for body in bodies(s) for x in body))
    if isinstance(s, Loop):
        return (inside - {s.var}) | set(D.symbols(s.extent))
    return own | inside
