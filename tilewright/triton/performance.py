"""Queries about speed: `triton.testing`'s limits of the machine and `triton.ops`' model of
a product of matrices, for this CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.runtime.pool import get_threads
from tilewright.targets import host


def get_dram_gbps(device: Any = None) -> float:
    """The bandwidth of memory for one core, from the target, in GB/s."""
    return host().memory_bandwidth * host().mhz * 1e6 / 1e9


def get_max_simd_tflops(dtype: Any, clock_rate: float | None = None, device: Any = None) -> float:
    """Multiplications and additions of all cores in a second, in 10^12; `clock_rate` is in kHz."""
    target = host()
    clock = target.mhz * 1e6 if clock_rate is None else clock_rate * 1e3
    width = getattr(dtype, "primitive_bitwidth", None) or 8 * dtype.itemsize
    lanes = target.lanes(max(width, 32))
    return 2 * lanes * target.fma_pipes * get_threads() * clock / 1e12


# A CPU multiplies matrices with what it computes everything with.
get_max_tensorcore_tflops = get_max_simd_tflops


@contextmanager
def set_gpu_clock(
    ref_sm_clock: int = 1350, ref_mem_clock: int = 1215
) -> Iterator[tuple[float, float]]:
    """Gives the limits at the current clock; a CPU's clock is not set."""
    yield get_max_simd_tflops(_Single), get_dram_gbps()


class _Single:
    itemsize = 4


def cuda_memcheck(**target_kwargs: Any) -> Callable[[Any], Any]:
    """Tests stay what they are: TILEWRIGHT_TILE_CHECK=1 finds accesses out of bounds."""
    return lambda test: test


@contextmanager
def cuda_graph_without_gc(*args: Any, **kwargs: Any) -> Iterator[None]:
    import torch

    with torch.cuda.graph(*args, **kwargs):
        yield


def nvsmi(attrs: Sequence[str]) -> list[int]:
    raise Unsupported("nvsmi: there is no GPU to query", hint="leave it out")


def early_config_prune(
    configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any
) -> list[Any]:
    """Configurations whose blocks of both operands fit into a core's second cache; all of them
    where none does."""
    size = named_args["A"].element_size() if "A" in named_args else 4

    def fits(config: Any) -> bool:
        m, n, k = (config.kwargs[f"BLOCK_{axis}"] for axis in "MNK")
        return (m + n) * k * size <= host().l2

    return [c for c in configs if fits(c)] or list(configs)


def estimate_matmul_time(
    num_warps: int = 4,
    num_stages: int = 2,
    A: Any = None,
    B: Any = None,
    C: Any = None,
    M: int = 1,
    N: int = 1,
    K: int = 1,
    BLOCK_M: int = 64,
    BLOCK_N: int = 64,
    BLOCK_K: int = 32,
    SPLIT_K: int = 1,
    debug: bool = False,
    **_: Any,
) -> float:
    """Milliseconds of a product with such blocks: its arithmetic, with what blocks compute beyond
    the edges, or its traffic with memory, whichever takes longer."""
    rows, columns, deep = (-(-n // b) for n, b in ((M, BLOCK_M), (N, BLOCK_N), (K, BLOCK_K)))
    size = 4 if A is None else A.element_size()
    operations = 2.0 * rows * BLOCK_M * columns * BLOCK_N * deep * BLOCK_K
    blocks = rows * columns
    rounds = -(-blocks // get_threads()) * get_threads() / blocks  # cores that wait for the last
    computing = rounds * operations / (get_max_simd_tflops(_Single) * 1e12)
    moved = size * (blocks * (BLOCK_M + BLOCK_N) * deep * BLOCK_K + M * N * SPLIT_K)
    return 1e3 * max(computing, moved / (get_dram_gbps() * 1e9))


class CublasLt:
    """Triton's way to cuBLAS, for what is measured beside it: torch's product."""

    def __init__(self, workspace: Any = None) -> None:
        self.workspace = workspace

    def matmul(self, a: Any, b: Any, c: Any) -> None:
        """The product of rows with rows."""
        c.copy_(a.to(c.dtype) @ b.to(c.dtype).T)


def matmul(a: Any, b: Any, *_: Any, **__: Any) -> Any:
    """`triton.ops.matmul`, which Triton no longer has: torch's."""
    import torch

    return torch.matmul(a, b)
