"""The axioms: equalities of operators that others follow from, each with the record of its proof.

`published.json` has the 44 that a published optimizer rests on, `transformers.json` those that its
operators lack: broadcasting, quotients, exponentials, sums, softmax, norms, gathering, tiles;
`further.json` a few that shorten derivations. They are written for some ranks, axes and settings of
convolutions; at others they are proved again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.types import f64
from tilewright.superopt.applied import Settings, at_kinds
from tilewright.superopt.blocks import Block, Kind, Sizes
from tilewright.superopt.records import named, read, records
from tilewright.superopt.terms import Equality, Leaf, Term, Tree, renamed
from tilewright.superopt.vocabulary import Bound, Instance

FOLDER = Path(__file__).parent / "rules" / "axioms"
# Settings of a window: kernel, stride, padding, dilation.
Window = tuple[tuple[int, ...], ...]


@cache
def axioms() -> dict[str, Equality]:
    """All of them, by name."""
    out: dict[str, Equality] = {}
    for path in sorted(FOLDER.glob("*.json")):
        names = [named(path, k, r) for k, r in enumerate(records(path))]
        out |= dict(zip(names, read(path), strict=True))
    return out


def variants(e: Equality, ranks: Iterable[int], windows: Iterable[Window]) -> Iterator[Equality]:
    """The axiom for tensors of these ranks, along other axes, and with these windows, where it is
    proved for them."""
    most = max((len(x.kind) for x in e.leaves), default=0)
    found = [e, *(w for x in windows if (w := _windowed(e, x)) is not None)]
    for one in found:
        for more in sorted({r - most for r in ranks if r >= most}):
            lifted = _lifted(one, more, most)
            if lifted is not None:
                yield lifted
                yield from _turned(lifted, most + more)


def _lifted(e: Equality, more: int, most: int) -> Equality | None:
    if not more:
        return e
    front = tuple(f"b{k}" for k in range(more))
    kinds = tuple(front + x.kind if len(x.kind) == most else x.kind for x in e.leaves)
    return _safely(e, kinds)


def _windowed(e: Equality, window: Window) -> Equality | None:
    """With another window in the place of its only one."""
    kernel, *others = window
    named = ("stride", "padding", "dilation")
    mine = {(k, v) for t in _terms(e) for k, v in t.instance.attributes if k in (*named, "kernel")}
    if len({k for k, _ in mine}) != len(mine) or not mine:
        return None
    wanted = dict(zip(named, others, strict=True)) | {"kernel": kernel}
    settings: Settings = tuple(((k, v), wanted[k]) for k, v in sorted(mine) if v != wanted[k])
    kinds = tuple(_with_kernel(x.kind, kernel) for x in e.leaves)
    return (
        None
        if not settings and kinds == tuple(x.kind for x in e.leaves)
        else _safely(e, kinds, settings)
    )


def _with_kernel(kind: Kind, kernel: tuple[int, ...]) -> Kind:
    window = len(kind) == 4 and all(isinstance(b, int) for b in kind[2:])
    return (*kind[:2], *kernel) if window else kind


def _turned(e: Equality, rank: int) -> Iterator[Equality]:
    """Along other axes, where only one is named."""
    axes = {v for t in _terms(e) for k, v in t.instance.attributes if k == "axis"}
    axes |= {a for t in _terms(e) for k, v in t.instance.attributes if k == "axes" for a in v}
    if len(axes) != 1:
        return
    (old,) = axes
    for new in range(rank):
        if new != old:
            turned = Equality(_along(e.left, old, new), _along(e.right, old, new))
            swapped: dict[Leaf, Tree] = {
                x: replace(x, kind=_swapped(x.kind, old, new)) for x in e.leaves
            }
            made = Equality(renamed(turned.left, swapped), renamed(turned.right, swapped))
            if _is_proved(made):
                yield made


def _along(t: Tree, old: int, new: int) -> Tree:
    if isinstance(t, Leaf):
        return t
    changed = tuple((k, _axis(k, v, old, new)) for k, v in t.instance.attributes)
    return Term(Instance(t.instance.name, changed), tuple(_along(x, old, new) for x in t.operands))


def _axis(name: str, value: object, old: int, new: int) -> object:
    if isinstance(value, Bound):
        return replace(value, axis=new)
    if name == "axis":
        return new
    return (new,) if name == "axes" else value


def _swapped(kind: Kind, a: int, b: int) -> Kind:
    if max(a, b) >= len(kind):
        return kind
    out: list[Block] = list(kind)
    out[a], out[b] = out[b], out[a]
    return tuple(out)


def _terms(e: Equality) -> Iterator[Term]:
    stack: list[Tree] = [e.left, e.right]
    while stack:
        t = stack.pop()
        if isinstance(t, Term):
            yield t
            stack += t.operands


def _safely(e: Equality, kinds: tuple[Kind, ...], settings: Settings = ()) -> Equality | None:
    try:
        return at_kinds(e, kinds, settings)
    except (Unsupported, ValueError, IndexError):
        return None


@cache
def _is_proved(e: Equality) -> bool:
    try:
        left, right = e.nodes(Sizes.symbolic(e.symbols), f64)
        return left.type == right.type and e.is_proved()
    except (Invalid, Unsupported):
        return False
