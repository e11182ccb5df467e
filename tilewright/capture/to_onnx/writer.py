"""The table of operators that ONNX can say, and what each is given to write itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper

from tilewright.base.discover import import_all
from tilewright.base.errors import Unsupported
from tilewright.capture.onnx.elements import ELEMENT_OF, numpy_of
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Node
from tilewright.ir.polynomial import Quo
from tilewright.ir.types import DType, f32, f64, i32, i64, u8, u32, u64

OLDEST = 18  # axes of reductions are operands since then


class Unwritten(Exception):
    """ONNX cannot say this use of an operator, for the reason given."""


@dataclass(frozen=True)
class Out:
    """A value of the model that is written: its name and dtype."""

    name: str
    dtype: DType


Written = Out | tuple[Out | None, ...]
Write = Callable[..., Written]
F = TypeVar("F", bound=Write)
_TABLE: dict[str, list[tuple[int, Write]]] = {}


def writes(*names: str, since: int = OLDEST) -> Callable[[F], F]:
    """Register how an operator is written, `since` an opset. It is called with the writer, the node
    and its operands, and gives one `Out`, or one for each item (None where nobody asks for it)."""

    def register(f: F) -> F:
        for name in names:
            entries = _TABLE.setdefault(name, [])
            entries.append((since, f))
            entries.sort(key=lambda e: -e[0])
        return f

    return register


def writers_of(name: str, opset: int) -> list[Write]:
    """What may write an operator in an opset, the newest form first."""
    import_all("tilewright.capture.to_onnx")
    return [f for since, f in _TABLE.get(name, ()) if since <= opset]


def written_operators() -> tuple[str, ...]:
    """Names of all operators that can be written, for documentation and tests."""
    import_all("tilewright.capture.to_onnx")
    return tuple(sorted(_TABLE))


# In which dtype an operator is computed that ONNX does not have in its own, the closest first.
_WIDER: dict[str, tuple[DType, ...]] = {
    "f": (f32, f64),
    "i": (i32, i64),
    "u": (u32, i32, u64, i64),
    "b": (u8, i32),
}


class Writer:
    """Collects nodes and constants of a model. Names are made here."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.sizes: dict[str, tuple[str, int]] = {}  # of a symbol: an input and an axis that has it
        self.asked: dict[Node, set[int]] = {}  # which items of a node are read
        self._names = 0
        self._known: dict[Any, Out] = {}

    def name(self, what: str = "v") -> str:
        self._names += 1
        return f"{what}_{self._names}"

    def back_to(self, count: int) -> None:
        """Forgets the nodes after the first ones."""
        gone = {name for n in self.nodes[count:] for name in n.output}
        del self.nodes[count:]
        self._known = {k: x for k, x in self._known.items() if x.name not in gone}

    def known_here(self) -> dict[Any, Out]:
        """Sizes and constants that were written so far."""
        return dict(self._known)

    def known_again(self, known: dict[Any, Out]) -> None:
        """Forgets sizes that were computed in a body; constants are outside of all."""
        outside = {k: x for k, x in self._known.items() if x.name in self.constants}
        self._known = {**known, **outside}

    def refuse(self, why: str) -> NoReturn:
        raise Unwritten(why)

    # ---- nodes

    def op(self, kind: str, *xs: Out | None, dtype: DType | None = None, **attributes: Any) -> Out:
        """A node with one result. `dtype` is its result's, by default the first operand's; operands
        whose type ONNX does not allow are computed in a wider one."""
        return self.op_many(kind, *xs, dtypes=[dtype], **attributes)[0]

    def op_many(
        self, kind: str, *xs: Out | None, dtypes: Sequence[DType | None], **attributes: Any
    ) -> list[Out]:
        schema = defs.get_schema(kind, self.opset)
        wide = self._widened(schema, xs)
        given = [
            None if x is None else self.cast(x, wide.get(_parameter(schema.inputs, k), x.dtype))
            for k, x in enumerate(xs)
        ]
        outs, results = [], []
        for k, dtype in enumerate(dtypes):
            first = next(x for x in xs if x is not None)
            wanted = dtype or first.dtype
            held = wide.get(_parameter(schema.outputs, k), wanted)
            outs.append(Out(self.name(kind.lower()), held))
            results.append((outs[-1], wanted))
        names = ["" if x is None else x.name for x in given]
        self.nodes.append(helper.make_node(kind, names, [o.name for o in outs], **attributes))
        return [self.cast(o, wanted) for o, wanted in results]

    def _widened(self, schema: defs.OpSchema, xs: Sequence[Out | None]) -> dict[str, DType]:
        """By type parameters of an operator, what takes the place of dtypes that it does not
        have."""
        allowed = {t.type_param_str: set(t.allowed_type_strs) for t in schema.type_constraints}
        found: dict[str, DType] = {}
        for k, x in enumerate(xs):
            parameter = _parameter(schema.inputs, k)
            if x is None or parameter not in allowed or _type(x.dtype) in allowed[parameter]:
                continue
            for wider in _WIDER[x.dtype.kind]:
                if _type(wider) in allowed[parameter] and wider.bits >= x.dtype.bits:
                    found[parameter] = wider
                    break
            else:
                self.refuse(f"{schema.name} of {x.dtype} is not in opset {self.opset}")
        return found

    def cast(self, x: Out, dtype: DType) -> Out:
        if x.dtype is dtype:
            return x
        made = Out(self.name("cast"), dtype)
        to = ELEMENT_OF[dtype]
        self.nodes.append(helper.make_node("Cast", [x.name], [made.name], to=to))
        return made

    # ---- constants and sizes

    def constant(self, array: Any, dtype: DType) -> Out:
        held = np.asarray(array).astype(numpy_of(ELEMENT_OF[dtype]))
        key = (dtype.name, held.shape, held.tobytes())
        if key not in self._known:
            made = Out(self.name("c"), dtype)
            self.constants[made.name] = numpy_helper.from_array(held, made.name)
            self._known[key] = made
        return self._known[key]

    def number(self, value: float, dtype: DType) -> Out:
        return self.constant(np.array(value), dtype)

    def ints(self, values: Sequence[int]) -> Out:
        return self.constant(np.array(list(values), np.int64), i64)

    def dims(self, shape: Sequence[Dim]) -> Out:
        """Sizes as a vector."""
        numbers = [d for d in shape if isinstance(d, int)]
        if len(numbers) == len(shape):
            return self.ints(numbers)
        parts = [self.dim(d) for d in shape]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def scalar(self, d: Dim) -> Out:
        """A size as a tensor without axes."""
        if isinstance(d, int):
            return self.number(d, i64)
        return self.op("Squeeze", self.dim(d), self.ints([0]))

    def dim(self, d: Dim) -> Out:
        """A size as a vector of one element, computed from shapes of inputs where it is not a
        number."""
        if isinstance(d, int):
            return self.ints([d])
        if d in self._known:
            return self._known[d]
        total: Out | None = None
        for mono, factor in d.terms:
            product = self.ints([factor]) if factor != 1 or not mono else None
            for atom in mono:
                x = self._atom(atom)
                product = x if product is None else self.op("Mul", product, x)
            assert product is not None
            total = product if total is None else self.op("Add", total, product)
        assert total is not None
        self._known[d] = total
        return total

    def _atom(self, atom: Any) -> Out:
        if isinstance(atom, Quo):
            a, b = self.dim(atom.a), self.dim(atom.b)
            if atom.op in ("min", "max"):
                return self.op(atom.op.title(), a, b)
            rest = self.op("Mod", a, b)  # of the sign of the divisor
            if atom.op == "mod":
                return rest
            low, _ = D.bounds(atom.a)
            return self.op("Div", a if low >= 0 else self.op("Sub", a, rest), b)
        symbol = getattr(atom, "name", None)
        if symbol not in self.sizes:
            self.refuse(f"no input has an axis of the size {atom}")
        name, axis = self.sizes[symbol]
        made = Out(self.name("size"), i64)
        node = helper.make_node("Shape", [name], [made.name], start=axis, end=axis + 1)
        self.nodes.append(node)
        self._known[D.as_int(atom)] = made
        return made

    # ---- what several families need

    def reshape(self, x: Out, shape: Sequence[Dim]) -> Out:
        open_axes = [k for k, d in enumerate(shape) if isinstance(d, Int)]
        if len(open_axes) == 1 and 0 not in shape:
            shape = [-1 if k in open_axes else d for k, d in enumerate(shape)]
        return self.op("Reshape", x, self.dims(shape), allowzero=1 if 0 in shape else 0)

    def sliced(self, x: Out, axis: int, low: Dim, high: Dim, step: int = 1) -> Out:
        ends = self.dims([low]), self.dims([high])
        return self.op("Slice", x, *ends, self.ints([axis]), self.ints([step]))

    def negated(self, x: Out) -> Out:
        return self.op("Not", x)


def _parameter(formal: Sequence[Any], k: int) -> str:
    """The type parameter of operand or result k; the last one may stand for several."""
    return formal[min(k, len(formal) - 1)].type_str


def _type(dtype: DType) -> str:
    return f"tensor({onnx.TensorProto.DataType.Name(ELEMENT_OF[dtype]).lower()})"


def refused(reasons: dict[str, str]) -> Unsupported:
    """One error for everything that ONNX cannot say."""
    shown = "; ".join(f"{name}: {why}" for name, why in sorted(reasons.items()))
    return Unsupported(
        f"ONNX cannot say {'this operator' if len(reasons) == 1 else 'these operators'}: {shown}",
        hint="write the graph as it was before the passes that made them, or leave them out",
    )
