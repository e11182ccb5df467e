"""Code for one target: a shared object or a module, with the features that a machine needs."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from tilewright.base.errors import Unsupported
from tilewright.driver.export.code import EXPORTS, interface, operands_of, unpacking
from tilewright.driver.export.model import Model
from tilewright.driver.export.weights import WeightsFile
from tilewright.driver.program.default_passes import passes
from tilewright.driver.program.elsewhere import built_elsewhere
from tilewright.driver.program.options import Options
from tilewright.ir.node import Input
from tilewright.ir.target import Target
from tilewright.link.elf import PROCESS, shared_object
from tilewright.link.wasm import module
from tilewright.llvm.objects import cached_object
from tilewright.runtime.objects import read_symbols
from tilewright.targets import family_of

POOL = "libtilewright_pool.so.1"
_PARALLEL = "tw_parallel"
_POOL_CALLS = (
    "tw_parallel tw_pool_reset tw_pool_resize tw_pool_set_spin tw_pool_threads tw_pool_workers"
).split()
# Of a module whose threads share memory: for those who start them.
_WORKER_CALLS = ("tw_worker", "tw_pool_resize")
_MEMORY_PAGES = 65536  # it may grow as far as addresses reach


@dataclass(frozen=True)
class Compiled:
    """Objects for a target, which are not linked: all levels are compiled before it is known what
    the file of weights has."""

    target: Target
    images: tuple[bytes, ...]


@dataclass(frozen=True)
class Level:
    target: Target
    code: bytes
    needs_pool: bool
    link_seconds: float

    @property
    def file(self) -> str:
        return f"code/{self.target.name}.{'wasm' if self.module else 'so'}"

    @property
    def module(self) -> bool:
        """Is its pool inside?"""
        return family_of(self.target).module

    @property
    def features(self) -> dict[str, str]:
        """What the processor has to have, and how a program finds out (targets/family.py)."""
        tests = family_of(self.target).tests
        wanted = (f[1:] for f in self.target.features if f[0] == "+")
        return {f: tests[f] for f in wanted if f in tests}


def compiled(model: Model, target: Target, weights: WeightsFile, winograd: bool) -> Compiled:
    """Compiles a model for a target; what it reads is added to `weights`."""
    listed = None if winograd else passes(target).without("Winograd")
    values = {label: w.value for label, w in model.weights.items()}
    data = built_elsewhere(model.graph, target, Options(passes=listed), values)
    inputs = [n.op for n in model.graph.inputs if isinstance(n.op, Input)]
    places = {}
    for k, x in enumerate(inputs):
        known = model.weights.get(x.label)
        if known is not None and (k in data.kept or x.role != "weight"):
            places[x.label] = weights.add(known.name, known.value)
    constants = [weights.add(f"packed{k}", c) for k, c in enumerate(data.constants)]
    operands = operands_of(model, [x.label for x in inputs], places, constants)
    text = interface(model, data, operands)
    return Compiled(target, (*data.images, cached_object(text, target)))


def linked(made: Compiled, weights: WeightsFile) -> Level:
    """The shared object of a level, or its module, which has the pool inside."""
    target, images, exports = made.target, made.images, EXPORTS
    family = family_of(target)
    if weights.unpacked:
        images = (*images, cached_object(unpacking(weights.unpacked), target))
        exports = (*EXPORTS, "tw_unpack")
    shared = False
    if family.module:
        pool = cached_object(family.pool(target), target)
        images = (*images, pool)
        if set(_WORKER_CALLS) <= set(read_symbols(pool).defined):
            shared, exports = True, (*exports, *_WORKER_CALLS)
    start = perf_counter()
    if family.module:
        code = module(images, exports, memory_pages=_MEMORY_PAGES, shared=shared)
    else:
        needs = {PROCESS: [_PARALLEL, *sorted(family.system)]}
        code = shared_object(images, exports, name=f"tilewright-{target.name}.so", needs=needs)
    seconds = perf_counter() - start
    needs_pool = any(_PARALLEL in read_symbols(image).needed for image in images)
    return Level(target, code, needs_pool and not family.module, seconds)


def pool_library(target: Target) -> bytes:
    """The thread pool of an architecture, as a library that all packages of a process share."""
    family = family_of(target)
    least = next((p for p in family.presets if p.arch == target.arch), None)
    if least is None:
        raise Unsupported(f"{target.arch} has no preset that runs everywhere")
    image = cached_object(family.pool(least), least)
    open_names = sorted(read_symbols(image).needed)
    return shared_object([image], _POOL_CALLS, name=POOL, needs={PROCESS: open_names})
