"""Code for one target: a shared object or a module, with the features that it needs of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from tilewright.base.errors import Unsupported
from tilewright.driver.export.code import EXPORTS, interface, operands_of
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
from tilewright.runtime.program_data import ProgramData
from tilewright.targets import family_of

POOL = "libtilewright_pool.so.1"
_PARALLEL = "tw_parallel"
_POOL_CALLS = (
    "tw_parallel tw_pool_reset tw_pool_resize tw_pool_set_spin tw_pool_threads tw_pool_workers"
).split()
# Of a module with threads: for those who start them. Memory may grow as far as addresses reach.
_WORKER_CALLS = ("tw_worker", "tw_pool_resize")
_MEMORY_PAGES = 65536


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


def level(model: Model, target: Target, weights: WeightsFile, winograd: bool) -> Level:
    """Compiles and links a model for a target; what it reads is added to `weights`."""
    listed = None if winograd else passes(target).without("Winograd")
    values = {label: w.value for label, w in model.weights.items()}
    data = built_elsewhere(model.graph, target, Options(passes=listed), values)
    labels = [n.op.label for n in model.graph.inputs if isinstance(n.op, Input)]
    roles = [n.op.role for n in model.graph.inputs if isinstance(n.op, Input)]
    places = {}
    for k, label in enumerate(labels):
        known = model.weights.get(label)
        if known is not None and (k in data.kept or roles[k] != "weight"):
            places[label] = weights.add(known.name, known.value)
    constants = [weights.add(f"packed{k}", c) for k, c in enumerate(data.constants)]
    text = interface(model, data, operands_of(model, data, labels, places, constants))
    images = [*data.images, cached_object(text, target)]
    start = perf_counter()
    code = _linked(images, data, target)
    return Level(
        target,
        code,
        not family_of(target).module
        and any(_PARALLEL in read_symbols(image).needed for image in images),
        perf_counter() - start,
    )


def _linked(images: list[bytes], data: ProgramData, target: Target) -> bytes:
    family = family_of(target)
    if family.module:
        pool = cached_object(family.pool(target), target)
        threads = target.has("atomics")
        exports = (*EXPORTS, *(_WORKER_CALLS if threads else ()))
        return module((*images, pool), exports, memory_pages=_MEMORY_PAGES, shared=threads)
    needs = {PROCESS: [_PARALLEL, *sorted(family.system)]}
    return shared_object(images, EXPORTS, name=f"tilewright-{target.name}.so", needs=needs)


def pool_library(target: Target) -> bytes:
    """The thread pool of an architecture, as a library that all packages of a process share."""
    family = family_of(target)
    least = next((p for p in family.presets if p.arch == target.arch), None)
    if least is None:
        raise Unsupported(f"{target.arch} has no preset that runs everywhere")
    image = cached_object(family.pool(least), least)
    open_names = sorted(read_symbols(image).needed)
    return shared_object([image], _POOL_CALLS, name=POOL, needs={PROCESS: open_names})
