"""A random step for a nest: mostly one that has a chance, sometimes nonsense."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import cache

from tilewright.ir import dim as D
from tilewright.ir.expr import loads
from tilewright.ir.expr import walk as values
from tilewright.ir.types import DTYPES, has_all_of
from tilewright.ir.value_text import value_text
from tilewright.kernel.intrinsic import INTRINSICS, Match, match
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Path,
    Store,
    bodies,
    find,
    loop_names,
    reads,
    stages_in,
    walk,
)
from tilewright.kernel.step import STEPS, Step
from tilewright.kernel.steps.align import Align
from tilewright.kernel.steps.cache_read import CacheRead
from tilewright.kernel.steps.cache_write import CacheWrite
from tilewright.kernel.steps.complete import Complete
from tilewright.kernel.steps.compute_at import ComputeAt
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.compute_with import ComputeWith
from tilewright.kernel.steps.copy_operand import CopyOperand
from tilewright.kernel.steps.double_buffer import DoubleBuffer
from tilewright.kernel.steps.fuse import Fuse
from tilewright.kernel.steps.fuse_axes import FuseAxes
from tilewright.kernel.steps.init_at import InitAt
from tilewright.kernel.steps.join import Join
from tilewright.kernel.steps.materialise import Materialise
from tilewright.kernel.steps.pad import Pad
from tilewright.kernel.steps.pad_sum import PadSum
from tilewright.kernel.steps.parallel import Parallel
from tilewright.kernel.steps.peel import Peel
from tilewright.kernel.steps.permute import Permute
from tilewright.kernel.steps.pipeline import Pipeline
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.prefetch import Prefetch
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.reorder import Reorder
from tilewright.kernel.steps.retype import Retype
from tilewright.kernel.steps.reverse_compute_at import ReverseComputeAt
from tilewright.kernel.steps.rfactor import RFactor
from tilewright.kernel.steps.scan_lanes import ScanLanes
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.slide import Slide
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.storage_align import StorageAlign
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.steps.tile import Tile
from tilewright.kernel.steps.trim import Trim
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.steps.vectorize import Vectorize
from tilewright.targets import default

Maker = Callable[[Nest, random.Random], "Step | None"]


# How often a favoured kind is tried first.
FAVOUR = 0.4


def random_step(n: Nest, rng: random.Random, favour: str | None = None) -> Step | None:
    """Some step, rather often of the favoured kind."""
    if not loop_names(n):
        return None
    for _ in range(20):
        wanted = BY_KIND.get(favour or "")
        if wanted is None or rng.random() >= FAVOUR:
            wanted = rng.choices(_MAKERS, _WEIGHTS)[0]
        made = wanted(n, rng)
        if made is not None:
            return made
    return None


def _loops(n: Nest) -> list[tuple[Loop, Path]]:
    return [(s, p) for s, p in walk(n.body) if isinstance(s, Loop)]


def _loop(n: Nest, rng: random.Random) -> str:
    return rng.choice(loop_names(n))


def _stages(n: Nest) -> list[str]:
    return list(dict.fromkeys(s.stage for s, _ in walk(n.body) if isinstance(s, Store)))


def _locals(n: Nest) -> list[str]:
    return [b.name for b in n.buffers if b.scope not in ("in", "out")]


def _new(n: Nest, rng: random.Random, stem: str) -> str:
    """A fresh name, rarely one that is taken."""
    taken = {b.name for b in n.buffers} | set(loop_names(n))
    if rng.random() < 0.03:
        return rng.choice(sorted(taken))
    return next(f"{stem}{k}" for k in range(100) if f"{stem}{k}" not in taken)


def _split(n: Nest, rng: random.Random) -> Step:
    if rng.random() < 0.15:
        return Split(_loop(n, rng), rng.choice([0, 0, 4, 16]), rng.choice([1, 2, 3, 4]))
    return Split(_loop(n, rng), rng.choice([0, 1, 2, 2, 3, 4, 4, 4, 5, 7, 8, 16]))


def _chain(n: Nest, rng: random.Random) -> list[Loop]:
    """Loops perfectly nested in one another, from a random one down."""
    s, _ = rng.choice(_loops(n))
    chain = [s]
    while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop):
        chain.append(chain[-1].body[0])
    return chain


def _reorder(n: Nest, rng: random.Random) -> Step | None:
    names = [x.name for x in _chain(n, rng)]
    if len(names) < 2:
        return None
    some = rng.sample(names, rng.randint(2, min(4, len(names))))
    return Reorder(tuple(some))


def _fuse(n: Nest, rng: random.Random) -> Step | None:
    chain = _chain(n, rng)
    if len(chain) < 2:
        return None
    k = rng.randrange(len(chain) - 1)
    return Fuse(chain[k].name, chain[k + 1].name, _new(n, rng, "f"))


def _fuse_axes(n: Nest, rng: random.Random) -> Step | None:
    found = [b for b in n.buffers if len(b.shape) > 1]
    if not found:
        return None
    b = rng.choice(found)
    return FuseAxes(b.name, rng.randrange(len(b.shape)), rng.choice((2, 2, 3)))


def _slide(n: Nest, rng: random.Random) -> Step | None:
    found = [b for b in n.buffers if b.scope == "local" and len(b.shape) > 1]
    if not found:
        return None
    b = rng.choice(found)
    return Slide(b.name, *rng.sample(range(len(b.shape)), 2))


def _parallel(n: Nest, rng: random.Random) -> Step | None:
    top = [s.name for s in n.body if isinstance(s, Loop)]
    name = rng.choice(top) if top and rng.random() < 0.9 else _loop(n, rng)
    return Parallel(name, rng.choice([1, 1, 2, 3, 16]))


def _innermost(n: Nest, rng: random.Random) -> str:
    inner = [s.name for s, _ in _loops(n) if not any(isinstance(x, Loop) for x in s.body)]
    return rng.choice(inner) if rng.random() < 0.8 else _loop(n, rng)


def _vectorize(n: Nest, rng: random.Random) -> Step:
    around = rng.random() < 0.3  # loops with loops inside: lanes go into them
    return Vectorize(_loop(n, rng) if around else _innermost(n, rng), rng.random() < 0.3)


def _unroll(n: Nest, rng: random.Random) -> Step:
    return Unroll(_innermost(n, rng), rng.random() < 0.3)


def _scan_lanes(n: Nest, rng: random.Random) -> Step:
    return ScanLanes(_innermost(n, rng))


def _peel(n: Nest, rng: random.Random) -> Step | None:
    ragged = [
        s.name
        for s, _ in _loops(n)
        if s.kind == "serial"
        and any(isinstance(x, Loop) and s.var in D.symbols(x.extent) for x, _ in walk(s.body))
    ]
    chosen = rng.choice(ragged) if ragged and rng.random() < 0.95 else _loop(n, rng)
    return Peel(chosen, cases=rng.random() < 0.3)


def _trim(n: Nest, rng: random.Random) -> Step:
    return Trim(_loop(n, rng))


def _compute_at(n: Nest, rng: random.Random) -> Step | None:
    stages = [s for s in _stages(n) if s in _locals(n)] or _stages(n)
    stage = rng.choice(stages)
    users = [s.name for s, _ in _loops(n) if any(r.source == stage for r in reads(s))]
    at = rng.choice(users) if users and rng.random() < 0.95 else _loop(n, rng)
    return ComputeAt(stage, at, rng.random() < 0.2)


def _compute_with(n: Nest, rng: random.Random) -> Step | None:
    stages = _stages(n)
    if len(stages) < 2:
        return None
    stage = rng.choice(stages)
    own = next((s for s in n.body if isinstance(s, Loop) and stage in stages_in(s)), None)
    other = [s for s, p in _loops(n) if stage not in stages_in(s) and len(p) < 3]
    fits = [s for s in other if own is not None and D.known_eq(s.extent, own.extent)]
    host = fits if fits and rng.random() < 0.9 else other
    return ComputeWith(stage, rng.choice(host).name) if host else None


def _join(n: Nest, rng: random.Random) -> Step | None:
    every = [n.body, *(x for s, _ in walk(n.body) for x in bodies(s))]
    loops = [[s for s in body if isinstance(s, Loop)] for body in every]
    pairs = [(a, b) for body in loops for a, b in itertools.combinations(body, 2)]
    equal = [(a, b) for a, b in pairs if D.known_eq(a.extent, b.extent)]
    found = equal if equal and rng.random() < 0.95 else pairs
    if not found:
        return None
    a, b = rng.choice(found)
    return Join(a.name, b.name)


def _compute_inline(n: Nest, rng: random.Random) -> Step | None:
    return ComputeInline(rng.choice(_locals(n) or _stages(n)))


def _cache_read(n: Nest, rng: random.Random) -> Step | None:
    stores = [s for s, _ in walk(n.body) if isinstance(s, Store)]
    s = rng.choice(stores)
    sources = [str(r.source) for r in reads(s)]
    buffer = rng.choice(sources) if sources else rng.choice([b.name for b in n.buffers])
    others = [x.stage for x in stores if any(r.source == buffer for r in reads(x))]
    several = tuple(dict.fromkeys(others)) if rng.random() < 0.3 else ()
    return CacheRead(buffer, several if len(several) > 1 else s.stage, _new(n, rng, "c"))


def _cache_write(n: Nest, rng: random.Random) -> Step | None:
    return CacheWrite(rng.choice(_stages(n)), _new(n, rng, "w"))


def _rfactor(n: Nest, rng: random.Random) -> Step | None:
    found = [(s, p) for s, p in walk(n.body) if isinstance(s, Store) and s.combine and p]
    if not found:
        return None
    s, p = rng.choice(found)
    names = [q.name for q in p if ".r" in q.name] or [q.name for q in p]
    some = rng.sample(names, rng.randint(1, min(2, len(names))))
    return RFactor(s.stage, tuple(some), _new(n, rng, "p"), exact=rng.random() < 0.3)


def _set_scope(n: Nest, rng: random.Random) -> Step | None:
    return SetScope(rng.choice(n.buffers).name, rng.choice(["register", "register", "local"]))


Term = tuple[str, str, str, int]


def _terms(n: Nest) -> list[Term]:
    """(stage, loop, buffer, axis) of what sums add up along a loop, one place an iteration."""
    return [
        (s.stage, q.name, str(x.source), k)
        for s, p in walk(n.body)
        if isinstance(s, Store) and s.combine == "add"
        for q in p
        if q.kind == "serial" and not any(q.var in D.symbols(i) for i in s.index)
        for x in loads(s.value)
        for k, i in enumerate(x.index)
        if D.known_eq(i, D.as_int(q.var))
    ]


def _pad(n: Nest, rng: random.Random) -> Step | None:
    b = rng.choice([n.buffer(x) for x in _locals(n)] or list(n.buffers))
    axis, factor = rng.randrange(max(1, len(b.shape))), rng.choice([2, 3, 4, 8])
    return Pad(b.name, axis, factor, rng.random() < 0.3)


def _pad_sum(n: Nest, rng: random.Random) -> Step | None:
    """Or what it needs first: a copy of an operand that is followed by zeros."""
    terms, factor = _terms(n), rng.choice([2, 3, 4, 8])
    if not terms:
        return None
    stage, loop, name, axis = rng.choice(terms)
    if rng.random() < 0.2:
        return PadSum(loop, factor)
    end = next(x.extent for x, _ in find(n, loop))
    for _, _, name, axis in (t for t in terms if t[:2] == (stage, loop)):
        size = n.buffer(name).shape[axis]
        if n.buffer(name).scope != "local":
            return CacheRead(name, stage, _new(n, rng, "c"))
        if size == end:
            return Pad(name, axis, 16, True)
    return PadSum(loop, 16)


def _complete(n: Nest, rng: random.Random) -> Step | None:
    ragged = [s.name for s, _ in walk(n.body) if isinstance(s, Loop) and D.symbols(s.extent)]
    return Complete(rng.choice(ragged)) if ragged else None


def _align(n: Nest, rng: random.Random) -> Step | None:
    """All loops of one length inside another loop, or some of them."""
    paths = [(s, p) for s, p in walk(n.body) if isinstance(s, Loop) and p]
    if not paths:
        return None
    inner, path = rng.choice(paths)
    at = rng.choice([q.name for q in path])
    same = {s.name for s, p in paths if s.extent == inner.extent and at in {q.name for q in p}}
    some = same if rng.random() < 0.8 else {inner.name}
    return Align(tuple(sorted(some)), at, rng.choice((2, 4)), rng.choice((8, 16)))


def _permute(n: Nest, rng: random.Random) -> Step | None:
    b = rng.choice([n.buffer(x) for x in _locals(n)] or list(n.buffers))
    order = list(range(len(b.shape)))
    rng.shuffle(order)
    return Permute(b.name, tuple(order)) if len(order) > 1 else None


def _storage_align(n: Nest, rng: random.Random) -> Step | None:
    b = rng.choice([n.buffer(x) for x in _locals(n)] or list(n.buffers))
    if len(b.shape) < 2 and rng.random() < 0.9:
        return None
    axis = rng.randrange(max(1, len(b.shape) - 1))
    return StorageAlign(b.name, axis, rng.choice([2, 4, 8]), rng.choice([0, 0, 1]))


def _tile(n: Nest, rng: random.Random) -> Step | None:
    chain = _chain(n, rng)
    if len(chain) < 2:
        return None
    k = rng.randrange(len(chain) - 1)
    factors = rng.choice([2, 3, 4]), rng.choice([1, 2, 4, 5])
    return Tile(chain[k].name, chain[k + 1].name, *factors)


def _materialise(n: Nest, rng: random.Random) -> Step | None:
    s = rng.choice([s for s, _ in walk(n.body) if isinstance(s, Store)])
    parts = sorted({value_text(v) for v in values(s.value)})
    return Materialise(s.stage, rng.choice(parts), _new(n, rng, "m"))


def _relayout(n: Nest, rng: random.Random) -> Step | None:
    """Some axes in blocks, all in another order."""
    b = rng.choice([x for x in n.buffers if x.scope != "out"] or list(n.buffers))
    axes = [f"i{k}" for k in range(len(b.shape))]
    target = []
    for a in axes:
        block = rng.choice([0, 0, 2, 3, 4])
        target += [f"{a}//{block}", f"{a}%{block}"] if block else [a]
    rng.shuffle(target)
    return Relayout(b.name, f"{', '.join(axes)} -> {', '.join(target)}") if axes else None


def _retype(n: Nest, rng: random.Random) -> Step | None:
    """Mostly a wider dtype of the same kind."""
    b = rng.choice([n.buffer(x) for x in _locals(n)] or list(n.buffers))
    wider = [d.name for d in DTYPES.values() if d is not b.dtype and has_all_of(d, b.dtype)]
    return Retype(b.name, rng.choice(wider if wider and rng.random() < 0.9 else list(DTYPES)))


def _copy_operand(n: Nest, rng: random.Random) -> Step | None:
    found = [
        (str(x.source), s.stage)
        for s, _ in walk(n.body)
        if isinstance(s, Store)
        for x in reads(s)
        if n.buffer(str(x.source)).scope == "local" or rng.random() < 0.05
    ]
    return CopyOperand(*rng.choice(found), _new(n, rng, "u")) if found else None


def _tensorize(n: Nest, rng: random.Random) -> Step | None:
    """A loop that is an instruction of this machine, if there is one; rarely another."""
    names = sorted(i for i in INTRINSICS if _runs_here(i))
    if rng.random() < 0.05:
        return Tensorize(_loop(n, rng), rng.choice(names)) if names else None
    fits = [
        Tensorize(s.name, i)
        for s, _ in _loops(n)
        for i in names
        if s.kind == "serial" and isinstance(match(INTRINSICS[i], n, s), Match)
    ]
    return rng.choice(fits) if fits else None


@cache
def _runs_here(name: str) -> bool:
    here = default()
    family = {"aarch64": "arm64", "x86_64": "x86"}.get(here.arch)
    return name.split(".")[0] == family and all(map(here.has, INTRINSICS[name].features))


def _init_at(n: Nest, rng: random.Random) -> Step | None:
    found = [(s, p) for s, p in walk(n.body) if isinstance(s, Store) and s.combine and p]
    if not found:
        return None
    s, p = rng.choice(found)
    return InitAt(s.stage, rng.choice(p).name)


def _reverse_compute_at(n: Nest, rng: random.Random) -> Step | None:
    """A stage into a loop of something that it reads."""
    users = {s.stage: [r.source for r in reads(s)] for s, _ in walk(n.body) if isinstance(s, Store)}
    stage = rng.choice(list(users))
    made = [p for s, p in walk(n.body) if isinstance(s, Store) and s.buffer in users[stage] and p]
    return ReverseComputeAt(stage, rng.choice(rng.choice(made)).name) if made else None


def placed(n: Nest) -> list[tuple[str, str]]:
    """Buffers that are allocated in a loop, and the loop."""
    return [(s.buffer, p[-1].name) for s, p in walk(n.body) if isinstance(s, Alloc) and p]


def _double_buffer(n: Nest, rng: random.Random) -> Step | None:
    found = placed(n)
    return DoubleBuffer(rng.choice(found)[0]) if found else None


def _pipeline(n: Nest, rng: random.Random) -> Step | None:
    found = placed(n)
    if not found:
        return None
    buffer, loop = rng.choice(found)
    return Pipeline(loop, buffer, rng.choice([1, 1, 2, 3]), rng.random() < 0.1)


def _prefetch(n: Nest, rng: random.Random) -> Step | None:
    s, _ = rng.choice(_loops(n))
    sources = [str(r.source) for r in reads(s)]
    sources += [x.buffer for x, _ in walk((s,)) if isinstance(x, Store)]
    if not sources:
        return None
    inside = [x.name for x, _ in walk(s.body) if isinstance(x, Loop)]
    over = rng.choice(inside) if inside and rng.random() < 0.3 else ""
    return Prefetch(rng.choice(sources), s.name, rng.choice([1, 1, 2, 8]), over)


def _pragma(n: Nest, rng: random.Random) -> Step | None:
    if rng.random() < 0.5:
        return Pragma(_loop(n, rng), "nontemporal")
    return Pragma(_loop(n, rng), "unroll", rng.choice([2, 3, 4, 8]))


_TABLE: list[tuple[Maker, int]] = [
    (_split, 8),
    (_reorder, 5),
    (_fuse, 4),
    (_fuse_axes, 1),
    (_slide, 1),
    (_parallel, 3),
    (_vectorize, 5),
    (_unroll, 3),
    (_scan_lanes, 1),
    (_peel, 5),
    (_compute_at, 7),
    (_compute_with, 5),
    (_join, 3),
    (_compute_inline, 2),
    (_cache_read, 3),
    (_rfactor, 4),
    (_set_scope, 1),
    (_pad, 2),
    (_pad_sum, 1),
    (_complete, 2),
    (_align, 2),
    (_permute, 1),
    (_storage_align, 1),
    (_cache_write, 2),
    (_retype, 2),
    (_copy_operand, 2),
    (_relayout, 1),
    (_materialise, 2),
    (_tile, 1),
    (_tensorize, 2),
    (_init_at, 2),
    (_reverse_compute_at, 3),
    (_double_buffer, 1),
    (_pipeline, 2),
    (_prefetch, 1),
    (_pragma, 1),
    (_trim, 1),
]
_MAKERS = [maker for maker, _ in _TABLE]
_WEIGHTS = [weight for _, weight in _TABLE]
_KINDS = {name.lower(): name for name in STEPS}
BY_KIND = {_KINDS[m.__name__.replace("_", "")]: m for m in _MAKERS}
DRAWN = tuple(sorted(BY_KIND))
