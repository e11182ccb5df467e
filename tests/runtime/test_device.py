"""One interface for every device: this processor, and a GPU whose driver is a stand-in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.test_cuda import Library, gpu
from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.runtime.cuda.gpu import Gpu
from tilewright.runtime.device import HOST, Device
from tilewright.tune.measure import timed

GROUP = parse_group(
    """
group twice where n: 1..4096
  in x: f32[n]
  out y: f32[n]
  y[y.i] = x[y.i] + x[y.i] for y.i in n
"""
)


def run_twice(on: Device, nest: Nest, target: Target, x: np.ndarray) -> np.ndarray:
    """Nothing here knows which device it is."""
    source, result = on.allocate(x.nbytes), on.allocate(x.nbytes)
    on.write(source, x)
    kernel = on.kernel(nest, target)
    assert [b.name for b in kernel.arguments] == ["x", "y"]
    launch = kernel.prepared([source.address, result.address], {"n": len(x)}, on.stream())
    launch()
    on.synchronise()
    return on.read(result, x)


def test_this_processor() -> None:
    x = np.arange(11, dtype=np.float32)
    np.testing.assert_array_equal(run_twice(HOST, start(GROUP), targets.default(), x), x + x)


def test_a_gpu() -> None:
    library, device = gpu()
    target = targets.get("cuda:90")
    nest = default_schedule(GROUP, target)[1]
    run_twice(Gpu(device), nest, target, np.zeros(11, np.float32))
    (values,) = library.launched
    assert values[-1] == 11 and len(values) == 3
    order = [n for n in library.names() if n.startswith(("cuMemcpy", "cuLaunch", "cuCtxSync"))]
    assert order == ["cuMemcpyHtoD_v2", "cuLaunchKernel", "cuCtxSynchronize", "cuMemcpyDtoH_v2"]
    launch = next(args for name, args in library.calls if name == "cuLaunchKernel")
    assert "cuStreamCreate" in library.names() and launch[8] != 0, "it runs on its own stream"


@pytest.mark.parametrize("on", [HOST, Gpu(gpu()[1])], ids=["host", "gpu"])
def test_what_does_not_fit(on: Device) -> None:
    small = on.allocate(8)
    for use in (on.write, on.read):
        with pytest.raises(Invalid, match="16 bytes do not fit into 8"):
            use(small, np.zeros(4, np.float32))


def test_timed_on_any_device() -> None:
    library: Library
    library, device = gpu()
    target = targets.get("cuda:90")
    nests = [default_schedule(GROUP, target)[1]] * 2
    found = timed(nests, target, rounds=2, on=Gpu(device))
    assert found is not None and len(found) == 2 and all(s > 0 for s in found)
    assert len(library.launched) >= 2 * (4 + 1 + 2)
