"""Code for one target: a shared object or a module, with the features that a machine needs."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from tilewright.base.errors import Unsupported
from tilewright.driver.export.code import EXPORTS, RESULTS, interface, unpacking
from tilewright.driver.export.model import Model
from tilewright.driver.export.steps import Steps, steps_of
from tilewright.driver.export.weights import WeightsFile
from tilewright.driver.program.default_passes import passes
from tilewright.driver.program.elsewhere import built_elsewhere
from tilewright.driver.program.options import Options
from tilewright.ir.node import Graph, Input
from tilewright.ir.target import Target
from tilewright.link.wasm import module
from tilewright.llvm.objects import cached_object
from tilewright.runtime.objects import read_symbols
from tilewright.runtime.program_data import ProgramData
from tilewright.targets import family_of
from tilewright.targets.systems import system_of

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
    model: Model
    steps: Steps


@dataclass(frozen=True)
class Level:
    target: Target
    code: bytes
    needs_pool: bool
    link_seconds: float

    @property
    def file(self) -> str:
        suffix = "wasm" if self.module else system_of(self.target).suffix
        return f"code/{self.target.name}.{suffix}"

    @property
    def machine(self) -> str:
        """The architecture, and the system where that is not Linux."""
        return system_of(self.target).machine(self.target)

    @property
    def module(self) -> bool:
        """Is its pool inside?"""
        return family_of(self.target).module

    @property
    def features(self) -> dict[str, str]:
        """What the processor has to have, and how a program finds out (targets/family.py)."""
        tests = family_of(self.target).tests
        if self.module:
            return {f: tests[f] for f in self._wanted if f in tests}
        system = system_of(self.target)
        found = {f: system.testable(self.target, f, tests.get(f)) for f in self._wanted}
        return {f: test for f, test in found.items() if test is not None}

    @property
    def _wanted(self) -> list[str]:
        return [f[1:] for f in self.target.features if f[0] == "+"]


def compiled(model: Model, target: Target, weights: WeightsFile, winograd: bool) -> Compiled:
    """Compiles a model for a target; what it reads is added to `weights`."""
    listed = None if winograd else passes(target).without("Winograd")
    values = {label: w.value for label, w in model.weights.items()}

    def compile(graph: Graph) -> tuple[ProgramData, dict[str, int], list[int]]:
        data = built_elsewhere(graph, target, Options(passes=listed), values)
        places = {}
        for k, n in enumerate(graph.inputs):
            assert isinstance(n.op, Input)
            known = model.weights.get(n.op.label)
            if known is not None and (k in data.kept or n.op.role != "weight"):
                places[n.op.label] = weights.add(known.name, known.value)
        return data, places, [weights.add(f"packed{k}", c) for k, c in enumerate(data.constants)]

    return Compiled(target, model, steps_of(model, compile))


def linked(made: Compiled, weights: WeightsFile) -> Level:
    """The shared object of a level, or its module, which has the pool inside."""
    target, exports, start = made.target, EXPORTS, len(weights.head())
    if made.model.counted_in_outputs():
        exports = (*exports, RESULTS)
    family = family_of(target)
    texts = [interface(made.model, made.steps, 0 if weights.unpacked else start)]
    if weights.unpacked:
        texts.append(unpacking(weights.unpacked, start))
        exports = (*exports, "tw_unpack")
    # Programs may have kernels in common.
    images = tuple(dict.fromkeys(x for step in made.steps.steps for x in step.data.images))
    images = (*images, *(cached_object(text, target) for text in texts))
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
        system = system_of(target)
        taken = sorted({_PARALLEL} | family.system | system.open)
        name = f"tilewright-{target.name}.{system.suffix}"
        code = system.link(target, images, exports, name, taken)
    seconds = perf_counter() - start
    needs_pool = any(_PARALLEL in read_symbols(image).needed for image in images)
    return Level(target, code, needs_pool and not family.module, seconds)


def pool_library(target: Target) -> bytes:
    """The thread pool of an architecture, as a library that all packages of a process share."""
    family = family_of(target)
    least = next((p for p in family.presets if p.arch == target.arch), None)
    if least is None:
        raise Unsupported(f"{target.arch} has no preset that runs everywhere")
    system = system_of(target)
    if system.architectures:
        least = system.target(least)
    image = cached_object(family.pool(least), least)
    open_names = sorted(read_symbols(image).needed)
    return system.link(least, [image], _POOL_CALLS, system.pool, open_names)


def pool_file(level: Level) -> str:
    """Where a package has the pool for a level's machine."""
    return f"lib/libtilewright_pool-{level.machine}.{system_of(level.target).suffix}"
