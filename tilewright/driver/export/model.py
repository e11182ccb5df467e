"""A model to be exported: one graph, the values of its weights, and what users call its parts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.base.errors import Invalid, Unsupported
from tilewright.graph.divide import Cut
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.extremes import greatest
from tilewright.ir.node import Graph
from tilewright.ir.polynomial import INF
from tilewright.ir.types import DType
from tilewright.runtime.program_data import Stored


@dataclass(frozen=True)
class Described:
    """An input or output, under the user's name. `label`: that of the graph's input."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    label: str = ""


@dataclass(frozen=True)
class Check:
    """A condition on data: what is told where it fails, with {index} and {size}."""

    words: str
    size: Dim | None


@dataclass(frozen=True)
class Weight:
    """A value of the graph's input `label`, under the user's name."""

    name: str
    value: Stored


@dataclass(frozen=True)
class Model:
    """The graph's outputs are those of `outputs`, then, where there are `checks`, integers: whether
    one failed, then each of them. `counted` are sizes that data decides, as symbols, in the order
    in which they become known."""

    name: str
    graph: Graph
    weights: Mapping[str, Weight]  # by the label of the graph's input
    inputs: tuple[Described, ...]
    outputs: tuple[Described, ...]
    checks: tuple[Check, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # the user's, of symbols
    specialised: Mapping[str, Any] = field(default_factory=dict)  # values that it holds for
    narrower: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # bounds of symbols
    counted: tuple[Cut, ...] = ()

    @property
    def symbols(self) -> tuple[D.Sym, ...]:
        """Those of the inputs, in order; a call gives their values."""
        found = (s for x in self.inputs for d in x.shape for s in sorted_symbols(d))
        return tuple(dict.fromkeys(found))

    def bounds(self, s: D.Sym) -> tuple[int, int | None]:
        """Inclusive; None: there is no upper one."""
        low, high = self.narrower.get(s.name) or D.bounds(D.as_int(s))
        return max(low, 0), None if high >= INF else high

    @property
    def most(self) -> dict[D.Sym, Dim]:
        """How large sizes may be that data decides, by the sizes of inputs."""
        found: dict[D.Sym, Dim] = {}
        for c in self.counted:
            assert c.most is not None
            found[D.the_sym(c.size)] = greatest(c.most, found)
        return found

    def counted_in_outputs(self) -> tuple[Cut, ...]:
        """Those that are sizes of outputs."""
        read = {s for x in self.outputs for d in x.shape for s in sorted_symbols(d)}
        return tuple(c for c in self.counted if D.the_sym(c.size) in read)

    def shown(self, d: Dim) -> int | str:
        """A size as a manifest says it."""
        if isinstance(d, int):
            return d
        new = {s: D.sym(self.names.get(s.name, s.name), s.lo, s.hi) for s in D.symbols(d)}
        return str(D.substitute(d, new))

    def checked(self) -> Model:
        """Itself, if a call's inputs say everything about sizes."""
        for x in (self.inputs, self.outputs):
            own = [y.name for y in x]
            for name in own:
                if own.count(name) > 1:
                    raise Invalid(f"{self.name} has two parts of the name {name!r}")
        counted = [D.the_sym(c.size) for c in self.counted_in_outputs()]
        shown = [self.names.get(s.name, s.name) for s in (*self.symbols, *counted)]
        for name in shown:
            if shown.count(name) > 1:
                raise Invalid(f"two sizes of {self.name} are called {name}", hint="rename a Dim")
        alone = {d for x in self.inputs for d in x.shape if D.is_sym(d)}
        for s in self.symbols:
            if D.as_int(s) not in alone:
                raise Unsupported(
                    f"{self.name} cannot be exported: no input has an axis of size "
                    f"{self.names.get(s.name, s.name)}, by which a call would determine it",
                    hint="make an axis dynamic by itself",
                )
        known = {*self.symbols, *self.most}
        for x in self.outputs:
            for d in x.shape:
                if not isinstance(d, int) and not set(D.symbols(d)) <= known:
                    raise Unsupported(
                        f"{self.name} cannot be exported: nothing says what the size {d} of "
                        f"{x.name} is",
                        hint="return a tensor whose size inputs or nonzero elements determine",
                    )
        return self


def sorted_symbols(d: Dim) -> Sequence[D.Sym]:
    return () if isinstance(d, int) else sorted(D.symbols(d), key=lambda s: s.name)


def counted_names(outputs: Sequence[Described], counted: Sequence[Cut]) -> dict[str, str]:
    """Names of sizes that data decides: after the first output that has such an axis, and it."""
    found: dict[str, str] = {}
    axes = [(x.name, k, d) for x in outputs for k, d in enumerate(x.shape)]
    for c in counted:
        for label, axis, d in axes:
            if d == c.size:
                found.setdefault(c.symbol, re.sub(r"\W", "_", f"{label}_{axis}"))
    return found
