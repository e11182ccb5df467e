"""Results that the host is told (`Buffer.told`): on a GPU they are memory of the host, which is far
away. A kernel writes there only what is not zero, so that nothing is sent where all is well, and
what a call has found stays there until the host looks at it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import const, fn
from tilewright.ir.target import Target
from tilewright.kernel.nest import If, Nest, Stmt, Store, transform


def tell_what_is_found(n: Nest, target: Target) -> Nest:
    names = {b.name: b.dtype for b in n.buffers if b.told}
    if target.grid is None or not names:
        return n

    def one(s: Stmt) -> tuple[Stmt, ...]:
        if isinstance(s, Store) and s.buffer in names:
            return (If(fn("ne", s.value, const(0, names[s.buffer])), (s,)),)
        inner = s.then[0] if isinstance(s, If) and s.then else None
        again = isinstance(inner, If) and isinstance(s, If) and inner.condition == s.condition
        return (inner,) if again and inner is not None else (s,)  # it was told before

    return replace(n, body=transform(n.body, one))
