"""`tl.target_info`: what kernels ask about the machine they are compiled for. It is a CPU, so that
branches for graphics cards fall away."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from tilewright.lang.tile.front.functions import constexpr_function
from tilewright.lang.tile.language.core import builtin


@dataclass(frozen=True)
class Target:
    backend: str
    arch: str
    warp_size: int = 1


@builtin
def current_target():
    return Target("cpu", platform.machine())


@constexpr_function
def is_cuda():
    return False


@constexpr_function
def cuda_capability_geq(major, minor=0):
    """Whether this is a card of at least that compute capability: never."""
    return False


@constexpr_function
def is_hip():
    return False


@constexpr_function
def is_hip_cdna3():
    return False


@constexpr_function
def is_hip_cdna4():
    return False


@constexpr_function
def is_hip_gfx1250():
    return False
