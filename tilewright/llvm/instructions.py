"""Instructions that a target declares (kernel/intrinsic.py), and prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tilewright.base.errors import Unsupported
from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.target import Target
from tilewright.kernel.intrinsic import INTRINSICS, Ask, Intrinsic, Match, Operand, match
from tilewright.kernel.nest import Loop, Prefetch, Stmt
from tilewright.llvm.addresses import Addresses
from tilewright.llvm.context import Context
from tilewright.llvm.opaque import DECLARATION
from tilewright.llvm.products import prefetch
from tilewright.llvm.writer import Writer

_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"


class Fragments(Protocol):
    """What knows where the fragments of a warp's instructions are."""

    def fragment(self, x: Operand) -> str: ...

    def staged(self) -> str: ...


class Instructions:
    def __init__(
        self, w: Writer, c: Context, addresses: Addresses, target: Target, fragments: Fragments
    ) -> None:
        self.w, self.c, self.arith = w, c, w.arith
        self.addresses, self.target, self.fragments = addresses, target, fragments
        self.used: dict[str, Intrinsic] = {}  # instructions in this function
        self.begun: list[str] = []  # what asynchronous instructions write, in their order

    def prefetch(self, x: Load, level: int) -> None:
        """Only an address is computed, so it does not matter where it points."""
        p = self.addresses.of(self.c.buffers[str(x.source)], x.index)
        self.arith.declares.add(_PREFETCH)
        self.w.line(prefetch(p, level))

    def asks(self, s: Stmt, ask: Prefetch) -> bool:
        """Does an instruction prefetch lines while it runs?"""
        if not isinstance(s, Loop) or s.kind != "tensor" or ask.lines == 1:
            return False
        found = match(INTRINSICS[s.instruction], self.c.n, s)
        if INTRINSICS[s.instruction].ahead is None or not isinstance(found, Match):
            return False
        return all(isinstance(k, int) for k in found.sizes.values())

    def call(self, s: Loop, asks: Sequence[Prefetch] = ()) -> None:
        """A call of the declared instruction, which is inlined; it prefetches lines as it goes."""
        i = INTRINSICS[s.instruction]
        self.require(i)
        found = match(i, self.c.n, s)
        assert isinstance(found, Match), found.reason
        dim = self.addresses.indices.dim
        args: list[tuple[str, str, str]] = []
        for x in found.operands:
            args.append(("ptr", f"%{x.name}", self._begin(x)))
            for k, d in enumerate(x.strides):
                args.append(("i64", f"%{x.name}.{k}", dim(d)))
        for axis, size in found.sizes.items():
            if not isinstance(size, int):
                args.append(("i64", f"%size.{axis}", dim(size)))
        if i.staged is not None:
            args.append(("ptr addrspace(3)", "%staged", self.fragments.staged()))
        sizes = "_".join(str(n) if n is not None else "n" for n in found.constants.values())
        name = f"{i.name}.{sizes}"
        if asks and i.ahead is not None:
            for k, ask in enumerate(asks):
                name += f".{ask.lines}_{ask.level}"
                ahead = self.addresses.of(self.c.buffers[str(ask.load.source)], ask.load.index)
                args.append(("ptr", f"%ahead.{k}", ahead))
            ahead = tuple(Ask(ask.lines, ask.level) for ask in asks)
            body = i.ahead(found.constants, ahead).rstrip()
            self.arith.declares.add(_PREFETCH)
        else:
            body = i.emission(found.constants).rstrip()
        if self.target.pointer_bits < 64 and _go_up(found):
            # Sums of 32 bits may wrap around. Where LLVM knows that none does, loads add constants.
            name, body = f"{name}.up", body.replace("getelementptr ", "getelementptr nuw ")
        head = ", ".join(f"{t} {name}" for t, name, _ in args)
        self.arith.defines[name] = (
            f'define internal void @"{name}"({head}) alwaysinline nounwind {{\n{body}\n}}'
        )
        self.arith.declares |= {*i.declares, DECLARATION}
        self.w.line(f'call void @"{name}"({", ".join(f"{t} {v}" for t, _, v in args)})')
        self.used[i.name] = i
        if i.asynchronous:
            self.begun.append(found.operands[-1].buffer)
        self.c.touch(s)

    def require(self, i: Intrinsic) -> None:
        """An error where the machine does not have an instruction."""
        lacking = [f for f in i.features if not self.target.has(f)]
        if lacking:
            what = f"{i.name} needs {', '.join(lacking)}, which {self.target.name} does not have"
            raise Unsupported(what, hint="leave out the Tensorize for this target")

    def _begin(self, x: Operand) -> str:
        """Where an operand begins."""
        if x.index:
            return self.fragments.fragment(x)
        return self.addresses.at(self.c.buffers[x.buffer], x.base)

    def around(self) -> list[str]:
        """The function's lines between what its instructions need where it begins and ends."""
        enter = [f"  {x}" for i in self.used.values() for x in i.enter]
        leave = [f"  {x}" for i in self.used.values() for x in i.leave]
        return [*enter, *self.w.lines(), *leave, "  ret void", "}"]


def _go_up(found: Match) -> bool:
    """Do the addresses of operands never step back?"""
    return all(D.nonneg(d) for x in found.operands for d in x.strides)
