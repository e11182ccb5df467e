"""Long bodies scheduled piece by piece.

A step looks through the nest it is applied to. In a body of hundreds of statements, each of which
takes a few steps, most of that is about statements that have nothing to do with them. So a long
body is cut into windows, each a nest of its own inside the same loops; steps name what they change,
and so a trace is that of the whole nest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Loop, Nest, Stmt, mentions, stages_in

# Statements of a body that is cut, and of a window.
LONG, WINDOW = 96, 32


@dataclass(frozen=True)
class Windows:
    """A nest in pieces; `around` are the loops around the long body."""

    whole: Nest
    around: tuple[Loop, ...]
    pieces: tuple[Nest, ...]

    @staticmethod
    def of(n: Nest) -> Windows:
        """The windows of the outermost body that is long: one, if there is none."""
        around: list[Loop] = []
        body = n.body
        while len(body) <= LONG:
            loops = [s for s in body if isinstance(s, Loop)]
            if len(loops) != 1 or len(body) != 1:
                return Windows(n, (), (n,))
            around.append(loops[0])
            body = loops[0].body
        parts = list(_cut(body))
        return Windows(n, tuple(around), tuple(_piece(n, around, part) for part in parts))

    def joined(self, done: list[Nest]) -> Nest:
        """The whole nest, with its pieces as they are now."""
        if len(done) == 1:
            return done[0]
        body = tuple(s for n in done for s in self._inside(n))
        for loop in reversed(self.around):
            body = (loop.around(body),)
        found: dict[str, Buffer] = {b.name: b for b in self.whole.buffers}
        for n in done:
            found.update((b.name, b) for b in n.buffers)
        return replace(self.whole, buffers=tuple(found.values()), body=body)

    def _inside(self, n: Nest) -> Iterator[Stmt]:
        body = n.body
        for _ in self.around:
            (loop,) = body
            assert isinstance(loop, Loop)
            body = loop.body
        return iter(body)


def _cut(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    """Windows that hold all statements of each of their stages."""
    last = {name: k for k, s in enumerate(body) for name in stages_in(s)}
    begin = end = 0
    for k, s in enumerate(body):
        if k > end and k - begin >= WINDOW:
            yield body[begin:k]
            begin = k
        end = max(end, k, *(last[name] for name in stages_in(s)))
    yield body[begin:]


def _piece(n: Nest, around: list[Loop], part: tuple[Stmt, ...]) -> Nest:
    body = part
    for loop in reversed(around):
        body = (loop.around(body),)
    used = frozenset().union(*map(mentions, body))
    return replace(n, buffers=tuple(b for b in n.buffers if b.name in used), body=body)
