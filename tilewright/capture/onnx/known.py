"""What is known of values while a model is translated: shapes, axes and counts are often computed
by the model itself.

A value that depends on constants alone is evaluated. One that depends on an input is too, where
the caller gave that input's value; the input is then listed, since the graph holds for this value
only. Sizes that are symbols stay symbols: arrays of them hold Dims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.interpret import node_value
from tilewright.ir.node import Input, Node, topological
from tilewright.ir.types import TensorType
from tilewright.ops.creation import Iota
from tilewright.ops.reductions import Reduction

SETTINGS = 16  # elements


class NeedsValue(Unsupported):
    """The value of an input has to be known; `name` is the input."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"the value of the input {name!r} decides a shape or a setting",
            hint=f"give it: values={{{name!r}: array}}, or call the model with it",
        )


class NeedsSizes(Unsupported):
    """Symbolic sizes would have to be numbers here."""


class Known:
    """Values of nodes. `weights` are always known, `given` are inputs whose use is recorded."""

    def __init__(
        self,
        weights: Mapping[Node, Callable[[], np.ndarray]],
        given: Mapping[Node, np.ndarray],
        names: Mapping[Node, str],
    ) -> None:
        self._values: dict[Node, Any] = {}
        self._weights, self._given, self._names = weights, given, names
        self.used: set[Node] = set()
        self.inner = 0  # how many inputs of bodies there are

    def reads(self, n: Node) -> set[Node]:
        """The inputs, weights apart, that a value depends on."""
        found = (x for x in topological((n,)) if isinstance(x.op, Input))
        return {x for x in found if x not in self._weights}

    def constant(self, n: Node) -> bool:
        """Does it depend on no input, or only on those whose value the graph is made for?"""
        return self.reads(n) <= self.used

    def decided(self, n: Node) -> bool:
        """Is it constant, or decided by inputs that look like settings: few integers, or a flag?"""
        return all(
            x in self.used
            or (x in self._names and not x.dtype.is_float and x.ttype.is_static and _few(x))
            for x in self.reads(n)
        )

    def array(self, n: Node) -> np.ndarray:
        """The value; of dtype object where some elements are symbolic sizes."""
        self.used |= {x for x in self.reads(n) if x in self._given}
        for x in topological((n,), stop=self._values):
            self._values[x] = self._value(x)
        return self._values[n]

    def numbers(self, n: Node) -> np.ndarray:
        """The value, of plain numbers."""
        found = self.array(n)
        if found.dtype == object:
            raise NeedsSizes("a value depends on symbolic sizes, and has to be known here")
        return found

    def _value(self, n: Node) -> Any:
        if isinstance(n.op, Input):
            if n in self._weights:
                return self._weights[n]()
            if n in self._given:
                return self._given[n]
            if n not in self._names:
                raise Unsupported("a shape or a setting changes from round to round of a loop")
            raise NeedsValue(self._names[n])
        args = [self._values[x] for x in n.inputs]
        if isinstance(n.op, Iota) and isinstance(n.op.start, Int):
            if n.op.size != 1:
                raise NeedsSizes("a range starts at a symbolic size")
            return _objects([n.op.start])
        if any(isinstance(a, np.ndarray) and a.dtype == object for a in args):
            return _symbolic(n, args)
        if isinstance(n.type, TensorType) and not n.type.is_static:
            raise NeedsSizes("a value has symbolic sizes, and has to be known here")
        return node_value(n, args, {})


def _few(x: Node) -> bool:
    size = x.ttype.size
    return isinstance(size, int) and size <= SETTINGS


def _objects(items: Sequence[Dim]) -> np.ndarray:
    out = np.empty(len(items), object)
    out[:] = items
    return out


_TWO: dict[str, Callable[[Dim, Dim], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": D.floordiv,
    "mod": D.mod,
    "maximum": D.maximum,
    "minimum": D.minimum,
}
_REDUCED = {"sum": np.add, "prod": np.multiply}
_MOVES = frozenset("reshape permute expand slice concat flip take index gather".split())


def _symbolic(n: Node, args: Sequence[np.ndarray]) -> np.ndarray:
    """The value of a node some of whose operands are symbolic sizes."""
    name = n.op.name
    if name == "cast" and n.dtype.is_int:
        return args[0]
    if name in _TWO:
        f = np.frompyfunc(lambda a, b: _TWO[name](_dim(a), _dim(b)), 2, 1)
        return _plain(f(*args), n.shape)
    if name in ("eq", "ne"):
        equal = np.frompyfunc(_equal, 2, 1)(*args).astype(bool)
        return np.array(equal if name == "eq" else ~equal).reshape(_ints(n.shape))
    if name == "where" and args[0].dtype != object:
        return _plain(np.where(args[0], *(a.astype(object) for a in args[1:])), n.shape)
    if isinstance(n.op, Reduction) and name in _REDUCED:
        return _plain(_REDUCED[name].reduce(args[0], axis=n.op.axes), n.shape)
    if name in _MOVES:
        return _plain(n.op.reference(*args), n.shape)  # type: ignore[attr-defined]
    raise NeedsSizes(f"{name} of symbolic sizes has to be known here")


def _dim(x: Any) -> Dim:
    return x if isinstance(x, Int) else int(x)


def _equal(a: Any, b: Any) -> bool:
    a, b = _dim(a), _dim(b)
    if D.known_eq(a, b):
        return True
    if D.known_ne(a, b):
        return False
    raise NeedsSizes(f"whether {a} equals {b} has to be known here")


def _ints(shape: Sequence[Dim]) -> tuple[int, ...]:
    return tuple(int(d) for d in shape if isinstance(d, int))


def _plain(x: Any, shape: Sequence[Dim]) -> np.ndarray:
    """Of integers where no symbol is left."""
    out = np.asarray(x, dtype=object).reshape(_ints(shape))
    if any(isinstance(v, Int) for v in out.reshape(-1)):
        return out
    return out.astype(np.int64)
