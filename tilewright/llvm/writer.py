"""Writing a function of LLVM text: lines, registers, blocks, and where they go.

Every loop around the code being written is a level. What is computed is written at the outermost
level at which all it depends on is known (before the loops that do not change it), once, and
remembered there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tilewright.llvm.scalar_types import suffix, vector
from tilewright.llvm.scalars import Arith


@dataclass
class Level:
    """One loop around the code being written: what was computed in it, what goes before it."""

    pre: list[Any]
    memo: dict[Any, Any] = field(default_factory=dict)
    counters: Any = None  # quotients that go on with the loop (llvm/counters.py)


class Metadata:
    """The numbered metadata of a module."""

    def __init__(self, unrolls: bool = False) -> None:
        self.lines: list[str] = []
        self.unrolls = unrolls  # some loop of the module has the pragma unroll

    def node(self, content: str) -> str:
        """The number of a node; equal contents share one."""
        for line in self.lines:
            number, _, known = line.partition(" = ")
            if known == content:
                return number
        self.lines.append(f"!{len(self.lines)} = {content}")
        return f"!{len(self.lines) - 1}"

    def unroll(self, count: int | None) -> str:
        """What the branch of a loop that is unrolled so many times says; where LLVM unrolls at all,
        all others say that they are not. Each loop has a node of its own."""
        if not self.unrolls:
            return ""
        how = f'!"llvm.loop.unroll.count", i32 {count}' if count else '!"llvm.loop.unroll.disable"'
        times = self.node(f"!{{{how}}}")
        own = f"!{len(self.lines)}"
        self.lines.append(f"{own} = distinct !{{{own}, {times}}}")
        return f", !llvm.loop {own}"


def _flat(code: list[Any]) -> Iterator[str]:
    for x in code:
        if isinstance(x, list):
            yield from _flat(x)
        else:
            yield x


class Writer:
    def __init__(self, arith: Arith, metadata: Metadata) -> None:
        self.arith, self.metadata = arith, metadata
        self.entry: list[Any] = []
        self.out: list[Any] = []
        self.code = [self.entry, self.out]
        self.count = 0
        self.levels = [Level([])]
        self.depth = 0  # where code is being written; less than len(levels)-1 while hoisting
        arith.put = self.put

    # ---- text

    def put(self, text: str) -> str:
        """An instruction with a result, and the register that has it."""
        self.count += 1
        r = f"%v{self.count}"
        self.out.append(f"  {r} = {text}")
        return r

    def line(self, text: str, entry: bool = False) -> None:
        (self.entry if entry else self.out).append("  " + text)

    def label(self, name: str) -> None:
        self.out.append(f"{name}:")

    def fresh(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def lines(self) -> list[str]:
        return list(_flat(self.code))

    def integer(self, name: str, a: str, b: str) -> str:
        """An intrinsic of two numbers of 64 bits."""
        return self.arith.intrinsic(name, "i64", 1, a, b)

    def build(self, xs: list[str], t: str) -> str:
        """A vector of these lanes."""
        if len(xs) == 1:
            return xs[0]
        v = vector(t, len(xs))
        r = "poison"
        for k, x in enumerate(xs):
            r = self.put(f"insertelement {v} {r}, {t} {x}, i64 {k}")
        return r

    def negated(self, x: str, w: int) -> str:
        """The other value of each bit."""
        return self.put(f"xor {vector('i1', w)} {x}, {self.arith.splat_literal('true', 'i1', w)}")

    def all_of(self, xs: list[str], w: int) -> str:
        total = xs[0]
        for x in xs[1:]:
            total = self.put(f"and {vector('i1', w)} {total}, {x}")
        return total

    def across(self, how: str, mask: str, w: int) -> str:
        """`and` or `or` of the lanes of a mask."""
        name = f"@llvm.vector.reduce.{how}.{suffix('i1', w)}"
        self.arith.declares.add(f"declare i1 {name}(<{w} x i1>)")
        return self.put(f"call i1 {name}(<{w} x i1> {mask})")

    # ---- levels

    class _At:
        def __init__(self, w: Writer, level: int) -> None:
            self.w, self.level = w, min(level, w.depth)

        def __enter__(self) -> None:
            w = self.w
            self.saved = (w.out, w.depth)
            w.out = w.out if self.level >= w.depth else w.levels[self.level + 1].pre
            w.depth = self.level

        def __exit__(self, *_: object) -> None:
            self.w.out, self.w.depth = self.saved

    def at(self, level: int) -> _At:
        """What is written under this goes to a level further out."""
        return self._At(self, level)

    def known(self, key: Any) -> Any:
        """What was computed under a key at this level or further out, or None."""
        for level in self.levels[: self.depth + 1]:
            found = level.memo.get(key)
            if found is not None:
                return found
        return None

    def remember(self, key: Any, level: int, r: Any) -> None:
        self.levels[min(level, self.depth)].memo[key] = r

    @contextmanager
    def inside(self, pre: list[Any], counters: Any = None) -> Iterator[None]:
        """One level further in; `pre` is where the code before it goes."""
        self.levels.append(Level(pre, counters=counters))
        self.depth += 1
        assert self.depth == len(self.levels) - 1
        yield
        self.levels.pop()
        self.depth -= 1

    # ---- branches

    def likely(self) -> str:
        """What a branch says that nearly always goes to its first place: the other one spills."""
        weights = '!{!"branch_weights", i32 1000, i32 1}'
        return f", !prof {self.metadata.node(weights)}"

    def branch(
        self,
        condition: str,
        then: Callable[[], None],
        other: Callable[[], None] | None = None,
        likely: bool = False,
    ) -> None:
        """Code under a condition; what it computes is known inside only."""
        n = self.fresh("b")
        no = f"{n}.else" if other else f"{n}.end"
        weights = self.likely() if likely else ""
        self.line(f"br i1 {condition}, label %{n}.then, label %{no}{weights}")
        level = self.levels[self.depth]
        saved = level.memo
        for label, body in (("then", then), ("else", other)):
            if body is None:
                continue
            self.label(f"{n}.{label}")
            level.memo = dict(saved)
            body()
            self.line(f"br label %{n}.end")
        level.memo = saved
        self.label(f"{n}.end")

    def either(self, c: str, t: str, yes: Callable[[], str], no: Callable[[], str]) -> str:
        """One of two computations; nearly always the first."""
        n = self.fresh("g")
        self.line(f"br i1 {c}, label %{n}.in, label %{n}.edge{self.likely()}")
        level = self.levels[self.depth]
        saved = level.memo
        results = []
        for name, compute in (("in", yes), ("edge", no)):
            self.label(f"{n}.{name}")
            level.memo = dict(saved)
            results.append(compute())
            self.line(f"br label %{n}.{name}.end")
            self.label(f"{n}.{name}.end")
            self.line(f"br label %{n}.join")
        level.memo = saved
        self.label(f"{n}.join")

        def chosen(v: str, fast: str, slow: str) -> str:
            return f"phi {v} [ {fast}, %{n}.in.end ], [ {slow}, %{n}.edge.end ]"

        r = self.put(chosen(t, *results))
        lanes = int(t[1:].split(" x ")[0]) if t.startswith("<") else 1
        self.arith.joined(r, results, lanes, chosen)
        return r
