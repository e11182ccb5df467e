from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.kernel.nest import Alloc, Nest, Stmt, substitute_all, transform
from tilewright.kernel.step import Step
from tilewright.kernel.versions import loop_of, version_of


@dataclass(frozen=True)
class DoubleBuffer(Step):
    """A buffer that every iteration of a loop fills and reads has two versions, used in turn, so
    that one may be filled while the other is still read: threads wait once per iteration, not
    twice.

    for k:                             alloc t: f32[2,8]
      alloc t: f32[8]                  for k:
      for i: t[i] = …                    for i: t[k%2,i] = …
      for i: y[i] += t[i]                for i: y[i] += t[k%2,i]
    """

    buffer: str

    def apply(self, n: Nest) -> Nest:
        loop, _ = loop_of(self, n, self.buffer)
        turns = version_of(self.buffer, D.mod(D.as_int(loop.var), 2))

        def one(s: Stmt) -> tuple[Stmt, ...]:
            if s is not loop:
                return (s,)
            rest = (x for x in loop.body if x != Alloc(self.buffer))
            body = substitute_all(rest, {}, *turns)
            return Alloc(self.buffer), replace(loop, body=body)

        b = n.buffer(self.buffer)
        out = replace(n, body=transform(n.body, one))
        return out.with_buffer(replace(b, shape=(2, *b.shape)))
