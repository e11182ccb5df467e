"""Products and convolutions that a library computes, recognised by their index functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.gpu.random_products import Product
from tests.gpu.replays import replays
from tests.graph.build import arg, build, graph, weight
from tilewright.base.errors import Refused
from tilewright.base.events import Log
from tilewright.driver.program.grid_run import prepared
from tilewright.graph.conv_products import ConvProducts
from tilewright.graph.decompose import Decompose
from tilewright.graph.fuse import fuse
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel import simt
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.interpret import run
from tilewright.kernel.library import LibraryCall, library_calls, library_loops, without_library
from tilewright.kernel.nest import Alloc, Loop, Nest, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.ops.wide_matmul import wide_matmul
from tilewright.targets import get

TARGET = get("cuda:90")
LIBRARY = Choices(library=True)


def group_of(g: Graph, product: bool = True) -> Group:
    """The group of the cluster that multiplies."""
    fused = fuse(prepared(g, TARGET, Log()), TARGET, Log())
    for c in fused.clusters:
        made = build_group("kernel", c.nodes, c.inputs, c.outputs)
        if any(s.raxes for s in made.stages) == product:
            return made
    raise AssertionError("no such group")


def scheduled(g: Graph | Group) -> tuple[Group, Nest, LibraryCall]:
    group = g if isinstance(g, Group) else group_of(g)
    trace, nest = default_schedule(group, TARGET, LIBRARY)
    replays(group, trace, nest)
    assert parse_nest(nest_text(nest)) == nest
    (call,) = library_calls(nest)
    return group, nest, call


def linear(d: DType, rows: int, deep: int, columns: int) -> Graph:
    x, w, b = (
        arg("x", rows, deep, dtype=d),
        weight("w", columns, deep, dtype=d),
        weight("b", columns, dtype=d),
    )
    y = build.matmul(x, build.permute(w, (1, 0)))
    return graph(build.relu(build.add(y, b)))


def number(d: Dim) -> int:
    assert isinstance(d, int)
    return d


def called(call: LibraryCall, arrays: dict[str, np.ndarray]) -> None:
    """What a library would do, by numpy, on the views of the call."""
    views = []
    for v in call.views:
        flat = arrays[v.buffer].reshape(-1)
        strides = tuple(number(s) * flat.itemsize for s in v.strides)
        shape = tuple(map(number, v.shape))
        views.append(np.lib.stride_tricks.as_strided(flat[number(v.offset) :], shape, strides))
    a, b, out = views
    if call.function == "product":
        out[...] = np.matmul(a, b)
        return
    image = np.pad(a, [(0, 0), (0, 0), *((p, p) for p in call.padding)])
    gradient = call.function == "weight gradient"
    windows, kernel = (b, out) if gradient else (out, b)
    for at in np.ndindex(*windows.shape[2:]):
        for k in np.ndindex(*kernel.shape[2:]):
            place = tuple(
                p * s + t * d for p, s, t, d in zip(at, call.stride, k, call.dilation, strict=True)
            )
            if gradient:
                out[(..., *k)] += b[(..., *at)].T @ image[(..., *place)]
                continue
            x, w = image[(..., *place)], b[(..., *k)]
            per_group, results = b.shape[1], b.shape[0] // call.groups
            for g in range(call.groups):
                own = x[:, g * per_group : (g + 1) * per_group]
                rows = slice(g * results, (g + 1) * results)
                out[(slice(None), rows, *at)] += own @ w[rows].T


def test_a_linear_layer_is_a_product_and_a_map_of_ours() -> None:
    _, nest, call = scheduled(linear(bf16, 6, 8, 10))
    assert call.function == "product"
    a, b, out = call.views
    assert a.shape == (6, 8) and b.shape == (8, 10) and b.strides == (1, 8)
    assert out.dtype is bf16 and nest.buffer(out.buffer).scope == "local"
    ours = without_library(nest)
    assert not library_loops(ours) and any(b.name == out.buffer for b in ours.buffers)


# A convolution as a product of windows: 3 x 3 by 2, images with channels last.
WINDOWS = """
group windows
  in a0: f32[2,4,4,2]
  in a1: f32[3,18]
  out y0: f32[8,3]
  local t0: f32[8,18]
  local t2: f32[8,3]
  t0[t0.i0,t0.i1] = select(#(2*((t0.i0//2)%2)+(t0.i1//6)-1) >= 0 & \
#(((t0.i1//2)%3)+2*(t0.i0%2)-1) >= 0, a0[(t0.i0//4),2*((t0.i0//2)%2)+(t0.i1//6)-1,\
((t0.i1//2)%3)+2*(t0.i0%2)-1,(t0.i1%2)], 0.0) for t0.i0 in 8, t0.i1 in 18
  t2[t2.i0,t2.i1] add= t0[t2.i0,t2.r0] * a1[t2.i1,t2.r0] for t2.i0 in 8, t2.i1 in 3, t2.r0 in 18 \
from 0.0
  y0[y0.i0,y0.i1] = t2[y0.i0,y0.i1] for y0.i0 in 8, y0.i1 in 3
"""


# Windows of one pixel, every second one.
PIXELS = """
group pixels
  in a0: f32[2,4,5,2]
  in a1: f32[3,2]
  out y0: f32[12,3]
  local t2: f32[12,3]
  t2[t2.i0,t2.i1] add= a0[(t2.i0//6),2*((t2.i0//3)%2),2*(t2.i0%3),t2.r0] * a1[t2.i1,t2.r0] \
for t2.i0 in 12, t2.i1 in 3, t2.r0 in 2 from 0.0
  y0[y0.i0,y0.i1] = t2[y0.i0,y0.i1] for y0.i0 in 12, y0.i1 in 3
"""


def weight_gradient(
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
    size: tuple[int, int] = (5, 4),
) -> Group:
    """As a product of windows, of float32 as if instructions multiplied those."""
    x = arg("x", 2, 2, *size)
    steps = [
        (n + 2 * padding - dilation * (k - 1) - 1) // stride + 1
        for n, k in zip(size, kernel, strict=True)
    ]
    shape = (3, 2, *kernel)
    settings = (stride, padding, dilation)
    y = build.conv_backward_weight(arg("g", 2, 3, *steps), x, shape, *settings)
    made = Decompose().apply(graph(y), Log())
    made = ConvProducts(dtypes=("f32",), least=1, deep=1).apply(made, Log())
    found = [
        build_group("k", c.nodes, c.inputs, c.outputs) for c in fuse(made, TARGET, Log()).clusters
    ]
    return next(g for g in found if any(x.raxes for x in g.stages))


def test_a_weight_gradient_is_told_from_a_convolution_of_windows() -> None:
    """Either way it is the same sum; no library has kernels as large as images."""
    call = scheduled(weight_gradient((2, 2), 1, 1, 1))[2]
    assert call.function == "weight gradient" and call.views[2].shape == (3, 4, 2, 2)
    assert scheduled(parse_group(WINDOWS))[2].function == "convolution"


def test_wide_sums_of_narrow_products() -> None:
    g = graph(wide_matmul(arg("x", 2, 5, 7, dtype=bf16), arg("y", 2, 7, 3, dtype=bf16), f32))
    call = scheduled(g)[2]
    assert [v.dtype for v in call.views] == [bf16, bf16, f32]


# The same with columns of zeros behind those of the windows.
LONGER = (
    WINDOWS.replace("[3,18]", "[3,20]")
    .replace("[8,18]", "[8,20]")
    .replace("r0 in 18", "r0 in 20")
    .replace("t0.i1 in 18", "t0.i1 in 20")
    .replace("select(#(2*", "select(#((t0.i1//2)) < 9 & #(2*")
)
GRAPHS: dict[str, Callable[[], Graph | Group]] = {
    "weight gradient": lambda: weight_gradient((2, 2), 1, 1, 1, (3, 2)),
    "weight gradient by 2": lambda: weight_gradient((2, 2), 2, 1, 2),
    "weight gradient of pixels": lambda: weight_gradient((1, 1), 2, 0, 1),
    "longer windows": lambda: parse_group(LONGER),
    "windows": lambda: parse_group(WINDOWS),
    "pixels": lambda: parse_group(PIXELS),
    "one of a batch": lambda: graph(build.relu(build.matmul(arg("x", 1, 5, 7), arg("y", 1, 7, 3)))),
    "linear": lambda: linear(f32, 6, 8, 10),
    "alone": lambda: graph(build.matmul(arg("x", 5, 7), arg("y", 7, 3))),
    "batched": lambda: graph(build.matmul(arg("x", 2, 5, 7), arg("y", 2, 7, 3))),
    "one row": lambda: graph(build.matmul(arg("x", 1, 7), arg("y", 7, 3))),
    "conv": lambda: graph(
        build.relu(
            build.conv(arg("x", 2, 2, 5, 4), weight("w", 3, 2, 3, 2), (2, 1), (0, 0), (1, 2), 1)
        )
    ),
    "groups": lambda: graph(
        build.conv(arg("x", 2, 4, 3, 3), weight("w", 6, 2, 2, 2), (1, 1), (0, 0), (1, 1), 2)
    ),
    "padded": lambda: graph(
        build.conv(arg("x", 1, 2, 3, 4), weight("w", 3, 2, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    ),
    "depthwise": lambda: graph(
        build.conv(arg("x", 2, 3, 3, 4), weight("w", 3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3)
    ),
    "points": lambda: graph(
        build.conv(arg("x", 2, 3, 3, 4), weight("w", 4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1)
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_call_computes_what_its_loops_say(name: str) -> None:
    group, nest, call = scheduled(GRAPHS[name]())
    rng = np.random.default_rng(0)
    given = {
        b.name: rng.integers(-3, 4, [number(d) for d in b.shape]).astype(np.float32)
        for b in group.inputs
    }
    want = run(start(group), given)
    for key, found in simt.run(nest, given).items():
        np.testing.assert_array_equal(found, want[key])
    # The call by numpy, on plain memory, then what is left of the kernel.
    arrays = dict(given)
    result = call.arguments[-1]
    arrays[result] = np.zeros([number(d) for d in nest.buffer(result).shape], np.float32)
    called(call, arrays)
    ours = without_library(nest)
    if ours.body:
        read = replace(ours.buffer(result), scope="in")
        body = tuple(s for s in ours.body if not isinstance(s, Alloc) or s.buffer != result)
        arrays = simt.run(replace(ours, body=body).with_buffer(read), arrays)
    for key, value in want.items():
        np.testing.assert_array_equal(arrays[key], value)


def test_what_is_no_product_is_refused() -> None:
    x = graph(build.sum(arg("x", 5, 7), (1,), False))
    with pytest.raises(Refused, match="0 sums of products"):
        default_schedule(group_of(x), TARGET, LIBRARY)


def test_later_steps_leave_the_loops_of_a_call_alone() -> None:
    group = scheduled(GRAPHS["alone"]())[0]
    trace, nest = default_schedule(group, TARGET, LIBRARY)
    (inner,) = (s.name for s in library_loops(nest)[0].body if isinstance(s, Loop))
    with pytest.raises(Refused, match="a library is called for these loops"):
        apply(nest, parse_trace(f"Split({inner!r}, 2)"))
    with pytest.raises(Refused, match="a library call already"):
        apply(nest, parse_trace(str(trace[-1])))


def test_strict_sums_stay_ours() -> None:
    group = replace(scheduled(GRAPHS["alone"]())[0], precision="strict")
    with pytest.raises(Refused, match="strict"):
        default_schedule(group, TARGET, LIBRARY)


def test_another_tile_of_a_product() -> None:
    p = Product(256, 256, 128, across=(False, False)).group()
    best, other = (default_schedule(p, TARGET, c)[0] for c in (Choices(), Choices(tile=1)))
    assert best != other and "Tensorize" in print_trace(other)
    with pytest.raises(Refused, match="no other tile"):
        default_schedule(p, TARGET, Choices(tile=99))
