from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.kernel.nest import (
    FENCES,
    Alloc,
    Loop,
    Nest,
    Stmt,
    Wait,
    mentions,
    on_loops,
    sources,
    writes,
)
from tilewright.kernel.step import Step
from tilewright.kernel.steps.delay import one_by_one, uses_of


@dataclass(frozen=True)
class Hasten(Step):
    """Asynchronous products of an iteration begin as soon as what they read is there, and each is
    waited for where its results are needed: so they go on while others' results are worked on.

    for k in n:                             for k in n:
      s = a * b[k]                            s = a * b[k]
      wait products 0                         t = c * d[k]
      p = f(s)                                wait products 1       # s is there
      t = c * d[k]                            p = f(s)
      wait products 0                         y += p * d[k]
      q = g(p, t)                             wait products 1       # t is there
      z += q * b[k]                           q = g(p, t)
      wait products 0                         z += q * b[k]
      y += p * d[k]                           wait products 0
      wait products 0

    Of several that could begin, the one that waits for less does. Synchronise afterwards.
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        for x, _ in self.loops(n, self.loop):
            several = sum(uses_of(s) > 0 for s in x.body) > 1
            self.need(several, f"{self.loop} does not begin several asynchronous products")
            waits = [s.pending for s in x.body if isinstance(s, Wait) and s.products]
            what = f"{self.loop} lets products go on already"
            self.need(not any(waits), what, "before Pipeline with slack, and Delay")
            ends = _waits(x.body[-1]) or (len(x.body) > 1 and _waits(x.body[-2]))
            self.need(ends, f"{self.loop} does not end with a wait for products")

        def one(x: Loop) -> tuple[Stmt, ...]:
            return (replace(x, body=_waited(_ordered(x.body))),)

        return on_loops(n, self.loop, one)


def _waits(s: Stmt) -> bool:
    return isinstance(s, Wait) and s.products


def _conflict(a: Stmt, b: Stmt) -> bool:
    """Do two statements have to stay in order?"""
    if isinstance(a, FENCES) or isinstance(b, FENCES):
        return True
    first, second = (writes((s,)) | _begins(s) for s in (a, b))
    return bool(first & (mentions(b) | second) or second & mentions(a))


def _begins(s: Stmt) -> frozenset[str]:
    return frozenset((s.buffer,)) if isinstance(s, Alloc) else frozenset()


def _ordered(body: Sequence[Stmt]) -> list[Stmt]:
    """Each product with what it needs, the one that waits for the earliest products first."""
    left = [s for s in body if not _waits(s)]
    out: list[Stmt] = []
    begun: list[Stmt] = []
    while any(uses_of(s) for s in left):
        choices: list[tuple[int, int, list[int]]] = []
        for k, s in enumerate(left):
            if uses_of(s):
                needed = _needed(left, k)
                made = frozenset().union(*(mentions(left[j]) - writes((s,)) for j in needed))
                late = max((j for j, p in enumerate(begun) if writes((p,)) & made), default=-1)
                first = any(uses_of(left[j]) for j in needed[:-1])
                choices.append((late + len(body) * first, k, needed))
        _, _, needed = min(choices)
        *before, product = (left[k] for k in needed)
        # What a product begins with is done before the first one: registers are free to be written
        # while none goes on.
        first = next((k for k, s in enumerate(out) if uses_of(s)), len(out))
        if any(_conflict(x, s) for x in out[first:] for s in before):
            first = len(out)
        out[first:first] = before
        out.append(product)
        begun.append(product)
        left = [s for k, s in enumerate(left) if k not in needed]
    return [*out, *left]


def _needed(left: Sequence[Stmt], k: int) -> list[int]:
    """A statement and those before it that it comes after, however indirectly, in order."""
    found = [k]
    for j in range(k - 1, -1, -1):
        if any(_conflict(left[j], left[i]) for i in found):
            found.append(j)
    return sorted(found)


def _waited(body: Sequence[Stmt]) -> tuple[Stmt, ...]:
    """With a wait before whatever needs a product to be done."""
    out: list[Stmt] = []
    going: list[Stmt] = []  # uses of instructions, in order
    for s in body:
        parts = one_by_one(s) if uses_of(s) else [s]
        last = max((k for k, p in enumerate(going) if _needs(s, p)), default=-1)
        if last >= 0:
            out.append(Wait(len(going) - last - 1, products=True))
            going = going[last + 1 :]
        out += parts
        going += parts if uses_of(s) else []
    return (*out, Wait(0, products=True)) if going else tuple(out)


def _needs(s: Stmt, product: Stmt) -> bool:
    """Must a product be done before a statement? Another one may add to the same sums."""
    if isinstance(s, FENCES):
        return True
    made, read = writes((product,)), sources(product)
    own = writes((s,)) | _begins(s)
    if uses_of(s):
        return bool(made & (sources(s) - own) or read & own - made)
    return bool(made & (mentions(s) | own) or read & own)
