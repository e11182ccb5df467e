"""`tl.target_info`: queries about the machine that kernels are compiled for. It is a CPU, so that
branches for graphics cards are removed, unless TILEWRIGHT_TRITON_BACKEND names another one: then
kernels and the functions that launch them get the same answer."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from tilewright.base import knobs
from tilewright.lang.tile.front.functions import constexpr_function
from tilewright.lang.tile.language.core import builtin


@dataclass(frozen=True)
class GPUTarget:
    """What kernels are compiled for, in Triton's terms."""

    backend: str
    arch: int | str
    warp_size: int = 1


@builtin
def current_target() -> GPUTarget:
    """This CPU, or what TILEWRIGHT_TRITON_BACKEND names for programs that know GPUs only."""
    backend, _, arch = (knobs.triton_backend.get() or "cpu").partition(":")
    if backend == "cuda":
        return GPUTarget("cuda", int(arch) if arch.isdigit() else 80, 32)
    if backend == "hip":
        return GPUTarget("hip", arch or "gfx90a", 64)
    return GPUTarget("cpu", platform.machine())


@constexpr_function
def is_cuda():
    return current_target().backend == "cuda"


@constexpr_function
def cuda_capability_geq(major, minor=0):
    """Whether this is a card of at least that compute capability."""
    target = current_target()
    return target.backend == "cuda" and int(target.arch) >= 10 * major + minor


def _is_hip(*architectures: str) -> bool:
    target = current_target()
    return target.backend == "hip" and (not architectures or target.arch in architectures)


@constexpr_function
def is_hip():
    return _is_hip()


@constexpr_function
def is_hip_cdna3():
    return _is_hip("gfx942")


@constexpr_function
def is_hip_cdna4():
    return _is_hip("gfx950")


@constexpr_function
def is_hip_gfx1250():
    return _is_hip("gfx1250")
