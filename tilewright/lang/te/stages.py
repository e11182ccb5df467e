"""From tensors to the group a schedule starts from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.kernel.check import verify
from tilewright.kernel.group import Buffer, Group, GroupBuilder

from .expression import Tensor, require_inside


class _Stages(GroupBuilder):
    """Stages whose generated names do not clash with the user's."""

    def __init__(self, name: str, taken: set[str]) -> None:
        super().__init__(name)
        self.taken = taken

    def fresh(self) -> str:
        name = super().fresh()
        return self.fresh() if name in self.taken else name


def in_order(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Everything the outputs need, inputs first, each once."""
    done: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        t, ready = stack.pop()
        if t in done:
            continue
        if ready:
            done[t] = None
            continue
        stack.append((t, True))
        inputs = [x for x in t.inputs() if isinstance(x, Tensor) and x not in done]
        stack.extend((x, False) for x in reversed(inputs))
    return list(done)


def plain_names(tensors: Iterable[Tensor], taken: set[str]) -> dict[Tensor, str]:
    """The user's names, made plain and distinct."""
    out: dict[Tensor, str] = {}
    for t in tensors:
        stem = re.sub(r"\W", "_", t.name, flags=re.ASCII) or "t"
        stem = f"t_{stem}" if stem[0].isdigit() else stem
        name, k = stem, 0
        while name in taken:
            k += 1
            name = f"{stem}_{k}"
        taken.add(name)
        out[t] = name
    return out


def group_of(outputs: Sequence[Tensor]) -> tuple[Group, dict[Tensor, str]]:
    """The group which computes the outputs, and the name of each tensor in it."""
    for t in outputs:
        if t.body is None:
            raise Invalid(
                f"{t.name} is a placeholder: nothing computes it",
                hint="schedule the operation of a computed tensor",
            )
    tensors = in_order(outputs)
    dims = {s.name for t in tensors for d in t.shape for s in D.symbols(d)}
    names = plain_names(tensors, set(dims))
    wanted = [names[t] for t in dict.fromkeys(outputs)]
    b = _Stages("te_" + "_".join(wanted), set(names.values()) | dims)
    known: dict[E.Tensor, str] = {}
    for t in tensors:
        name = names[t]
        known[t] = name
        if t.body is None:
            b.buffers[name] = Buffer(name, t.dtype, t.shape, "in")
        else:
            require_inside(t.name, t.body)
            # Local first, so that a reduction has its own loops: an output's stage is what the
            # user schedules, not a copy of it.
            b.tensor(t, name, known, "local", False)
    rank = {"in": 0, "out": 1}
    for name in wanted:
        b.buffers[name] = replace(b.buffers[name], scope="out")
    order = {name: k for k, name in enumerate(wanted)}
    buffers = sorted(b.buffers.values(), key=lambda x: (rank.get(x.scope, 2), order.get(x.name, 0)))
    group = Group(b.name, tuple(buffers), tuple(b.stages))
    verify(group)
    return group, names
