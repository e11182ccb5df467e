"""How operands of products of narrow tiles are stored, for the instructions that a target has.

Lowering leaves them as the kernel has them. Where an instruction multiplies such numbers nothing
changes, but that its first operand may have to be wider or of the other sign. Where there is none,
operands are widened to the element of the sums where they are filled, once each: the product is one
of float32, say (defaults/tile_kernels.py). An operand that others read too is copied first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.types import DType, bf16, f16
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.defaults.tile_dots import Sizes, left_operand
from tilewright.kernel.nest import Nest, Store, own_loops, own_values, walk
from tilewright.kernel.steps.copy_operand import CopyOperand
from tilewright.kernel.steps.other_sign import OtherSign
from tilewright.kernel.steps.retype import Retype


def hold_operands(s: Scheduler) -> None:
    """Every product of narrow tiles with its operands as the target multiplies them."""
    found = list(_products(s.nest))
    if not found:
        return
    readers = _readers(s.nest)
    for p in found:
        _Operands(s, p, readers).hold()


@dataclass(frozen=True)
class _Product:
    stage: str
    buffers: tuple[str, str]
    dtypes: tuple[DType, DType, DType]
    sizes: Sizes


def _products(n: Nest) -> Iterator[_Product]:
    for x, path in walk(n.body):
        if not isinstance(x, Store) or x.combine != "add":
            continue
        v = x.value
        if not (isinstance(v, Fn) and v.name == "mul"):
            continue
        own = [q.extent for q in own_loops(path, x.stage)]
        rows, columns, deep = own[-3:] if len(own) > 2 else (None,) * 3
        if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(deep, int)):
            continue
        a, b = map(_operand, v.args)
        e = n.buffer(x.buffer).dtype
        if a is None or b is None or (a.dtype is e and b.dtype is e):
            continue
        dtypes = a.dtype, b.dtype, e
        yield _Product(x.stage, (str(a.source), str(b.source)), dtypes, (rows, columns, deep))


def _operand(v: Value) -> Load | None:
    v = v.args[0] if isinstance(v, Fn) and v.name == "cast" else v
    return v if isinstance(v, Load) else None


def _readers(n: Nest) -> dict[str, set[str]]:
    """The stages that read each buffer; "" stands for other statements."""
    found: dict[str, set[str]] = defaultdict(set)
    for x, _ in walk(n.body):
        stage = x.stage if isinstance(x, Store) else ""
        for v in own_values(x):
            for source in v.sources:
                found[str(source)].add(stage)
    return found


@dataclass
class _Operands:
    s: Scheduler
    product: _Product
    readers: dict[str, set[str]]

    def hold(self) -> None:
        a, b, e = self.product.dtypes
        left = None if a is e else self._left(a, b)
        if left is None and a is f16 and b is f16 and self._left(bf16, bf16) is bf16:
            # Floats of eight bits that were widened: bfloat16 has them too, and more machines
            # multiply it.
            if self._as_bfloat16():
                return
        if left is None:
            for k, dtype in enumerate((a, b)):
                if dtype is not e:
                    self._retype(k, e)
        elif left.bits > a.bits:
            self._retype(0, left)
        elif left is not a:
            stage, copy = self.product.stage, self._own(0)
            if copy is not None:
                self.s.attempt(copy)
            self.s.attempt(OtherSign(stage))

    def _left(self, a: DType, b: DType) -> DType | None:
        dtypes = a, b, self.product.dtypes[2]
        found = left_operand(self.s.target, dtypes, self.product.sizes)
        return None if found is None else found.left

    def _as_bfloat16(self) -> bool:
        saved = self.s.nest, list(self.s.trace)
        both = self.product.buffers
        alone = all(self._own(k) is None for k in (0, 1))
        if alone and all(self.s.attempt(Retype(x, bf16.name)) for x in dict.fromkeys(both)):
            return True
        self.s.nest, self.s.trace[:] = saved
        return False

    def _own(self, which: int) -> CopyOperand | None:
        """The step that copies an operand; None where nothing else reads it."""
        buffer, stage = self.product.buffers[which], self.product.stage
        local = self.s.nest.buffer(buffer).scope == "local"
        if local and self.readers[buffer] == {stage}:
            return None
        return CopyOperand(buffer, stage, f"{stage}{'ab'[which]}")

    def _retype(self, which: int, dtype: DType) -> None:
        """An operand in another dtype, in place where that is possible."""
        buffer = self.product.buffers[which]
        if self._own(which) is None and self.s.attempt(Retype(buffer, dtype.name)):
            return
        copy = CopyOperand(buffer, self.product.stage, f"{self.product.stage}{'ab'[which]}")
        if self.s.attempt(copy):
            self.s.attempt(Retype(copy.into, dtype.name))
