"""Random convolutions on warps: sizes, strides, padding, dilation, what is done to the results. The
schedule is run on the executor of threads, its code emulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from tests.generators import checked
from tests.gpu import emulate
from tests.gpu.replays import replays
from tests.graph.build import arg, build, graph, weight
from tilewright import targets
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.fuse import fuse
from tilewright.ir.node import Graph, Node
from tilewright.ir.types import DTYPES, as_dtype
from tilewright.kernel import simt
from tilewright.kernel.banks import Turns
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.interpret import run_group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.targets import nvptx


@dataclass(frozen=True)
class Convolution:
    """A convolution of images as torch has them, and what is done to its results."""

    batch: int = 1
    size: tuple[int, int] = (8, 8)
    channels: int = 64
    filters: int = 64
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    padding: int = 1
    dilation: int = 1
    groups: int = 1
    dtype: str = "bf16"
    residual: bool = False
    gradient: bool = False  # of the weight, in place of the convolution

    def image(self) -> Node:
        return arg("x", self.batch, self.channels, *self.size, dtype=DTYPES[self.dtype])

    def graph(self) -> Graph:
        d = DTYPES[self.dtype]
        w = weight("w", self.filters, self.channels // self.groups, *self.kernel, dtype=d)
        how = (self.stride, self.padding, self.dilation, self.groups)
        y = build.conv(self.image(), w, *how, wide=True)
        if self.gradient:
            grad = arg("g", *y.shape, dtype=d)
            return graph(build.conv_backward_weight(grad, self.image(), w.shape, *how))
        bias = build.reshape(weight("b", self.filters, dtype=d), (self.filters, 1, 1))
        y = build.add(y, build.cast(bias, y.dtype))
        if self.residual:
            other = arg("r", *y.shape, dtype=d)
            y = build.add(y, build.cast(other, y.dtype))
        return graph(build.cast(build.relu(y), d))

    def groups_of(self, name: str = "cuda:90") -> list[Group]:
        """The kernels that compute it, the copies of operands among them."""
        target = targets.get(name)
        ready = passes(target).run(self.graph(), target, Log())
        found = fuse(ready, target, Log()).clusters
        return [build_group(f"k{k}", c.nodes, c.inputs, c.outputs) for k, c in enumerate(found)]

    def group(self, name: str = "cuda:90") -> Group:
        """The kernel with the sum."""
        (found,) = (g for g in self.groups_of(name) if any(x.is_reduce for x in g.stages))
        return found


def arguments(g: Group) -> dict[str, np.ndarray]:
    """Numbers whose sums of products are exact."""
    rng = np.random.default_rng(len(g.stages))
    return {
        b.name: as_dtype(rng.integers(-2, 3, [int(str(d)) for d in b.shape]) / 2, b.dtype)
        for b in g.inputs
    }


def scheduled(g: Group, multiprocessors: int = 1, name: str = "cuda:90") -> Nest:
    """By the default schedule for a GPU with so many multiprocessors."""
    target = nvptx.with_numbers(targets.get(name), multiprocessors=multiprocessors)
    trace, nest = default_schedule(g, target)
    replays(g, trace, nest)
    return nest


def check(g: Group, nest: Nest, emulated: bool = True, conflicts: bool = False) -> None:
    """Right on the executor and emulated; without conflicts of banks, unless they are allowed."""
    verify(nest)
    given = arguments(g)
    (out,) = (b.name for b in g.outputs)
    want = run_group(g, given)[out].astype(np.float64)
    assert np.abs(want).max() > 0
    banks: dict[str, Turns] = {}
    got = simt.run(nest, given, banks=banks)[out].astype(np.float64)
    np.testing.assert_array_equal(got, want)
    assert conflicts or not any(t.conflicts for t in banks.values()), banks
    if emulated:
        got = emulate.run(nest, given, target=targets.get("cuda:90"))[out].astype(np.float64)
        np.testing.assert_array_equal(got, want)


def drawn(seed: int) -> tuple[Convolution, int]:
    rng = random.Random(seed)
    kernel = rng.choice([(1, 1), (3, 3), (3, 3), (2, 3), (1, 5)])
    c = Convolution(
        rng.choice([1, 2]),
        (rng.randint(2, 5), rng.randint(2, 6)),
        rng.choice([3, 4, 8, 16, 24, 64]),
        rng.choice([16, 24, 64, 72]),
        kernel,
        rng.choice([1, 1, 2]),
        rng.choice([0, 1, 2]),
        rng.choice([1, 1, 2]),
        1,
        rng.choice(["bf16", "f16"]),
        rng.random() < 0.5,
        rng.random() < 0.3,
    )
    # Windows that fit into the image, and enough of them and of their products.
    reach = [c.dilation * (k - 1) + 1 for k in c.kernel]
    size = tuple(max(s, r) + 3 for s, r in zip(c.size, reach, strict=True))
    return replace(c, size=(size[0], size[1])), rng.choice([1, 4, 16])


def check_seed(seed: int) -> None:
    c, multiprocessors = drawn(seed)
    g = c.group()
    check(g, scheduled(g, multiprocessors), conflicts=True)


GENERATOR = checked("gpu-convolutions", check_seed)
