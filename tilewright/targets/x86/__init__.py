"""x86-64: SSE2 at least, AVX2 with FMA, AVX-512."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection
from typing import Any

from tilewright.ir.target import Target
from tilewright.targets.family import Family, Host
from tilewright.targets.x86 import intrinsics as intrinsics  # declares them

_TRIPLE = "x86_64-unknown-linux-gnu"
_V3 = ("+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe", "+popcnt")
_V4 = (*_V3, "+avx512bw", "+avx512cd", "+avx512dq", "+avx512f", "+avx512vl")
# Bytes of a cycle that a core brings into each cache: what such processors sustain, not their peak.
_NARROW: dict[str, Any] = {"l2_bandwidth": 24, "l3_bandwidth": 10, "memory_bandwidth": 7}
_WIDE: dict[str, Any] = {"l2_bandwidth": 40, "l3_bandwidth": 10, "memory_bandwidth": 7, "issue": 5}


def _tiles_permitted() -> bool:
    """Asks Linux once for the state of tile registers, without which the first use is fatal."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    try:
        call = ctypes.CDLL(None).syscall
        return sys.platform == "linux" and call(arch_prctl, request, tile_data) == 0
    except (OSError, AttributeError):
        return False


def _instructions(features: Collection[str]) -> tuple[str, ...]:
    """What default schedules try, the best first."""
    found = ["x86.amx.bf16"] if "+amx-bf16" in features else []
    if "+amx-fp16" in features:
        found.append("x86.amx.f16")
    if "+amx-int8" in features:
        found += [f"x86.amx.{signs}" for signs in ("s8s8", "u8s8", "s8u8", "u8u8")]
    found += [name for _, name in _dot_products(features)]
    if _wide(features):
        found.append("x86.avx512.fma")
    elif {"+avx2", "+fma"} <= set(features):
        found.append("x86.avx2.fma")
    return tuple(found)


def _wide(features: Collection[str]) -> bool:
    """32-bit and 64-bit lanes need F, the narrower ones BW; a processor with F alone stays at
    AVX2."""
    return {"+avx512f", "+avx512bw", "+avx512vl", "+avx512dq"} <= set(features)


def _dot_products(features: Collection[str]) -> list[tuple[str, str]]:
    """Products with the instruction of the widest vectors that adds them up. Sums of pairs are for
    processors without any of bytes."""
    level = "x86.avx512." if _wide(features) else "x86.avx" if "+avx2" in features else "x86.sse2."
    own = [
        (product, name)
        for product, name, needs in intrinsics.DOTS
        if needs <= set(features)
        and name.startswith(level)
        and (_wide(features) or "512" not in name)
    ]
    bytes_ = any(product.startswith(("i8", "u8")) for product, _ in own)
    return [(p, n) for p, n in own if not (bytes_ and p.startswith("i16"))]


def _products(features: Collection[str]) -> dict[str, Any]:
    """What a target says of instructions and products."""
    tiles = ["bf16"] if "+amx-bf16" in features else []
    tiles += ["i8", "u8"] if "+amx-int8" in features else []
    return {
        "instructions": _instructions(features),
        "grouped": tuple(tiles),
        "dots": tuple(product for product, _ in _dot_products(features)),
    }


def describe(host: Host) -> Target:
    """The host's target: the widest vectors it has, tiles if the system lets us use them."""
    told = host.cpu.features
    if "+amx-tile" in told and not _tiles_permitted():
        # Switched off, not left out: the processor's name would bring them back.
        told = tuple(f"-{f[1:]}" if f.startswith("+amx") else f for f in told)
    features = set(told)
    wide = _wide(features)
    middle = "+avx2" in features
    return Target(
        name="host",
        triple=host.cpu.triple,
        cpu=host.cpu.cpu,
        features=told,
        vector_bits=512 if wide else 256 if middle else 128,
        vector_registers=32 if wide else 16,
        has_fma="+fma" in features,
        has_f16="+avx512fp16" in features,
        **_products(features),
        l1=host.caches.l1,
        l2=host.caches.l2,
        l3=host.caches.l3,
        cores=host.cores,
        rated=wide,  # measured on a server with AVX-512, nowhere else yet
        **(_WIDE if middle else _NARROW),
    )


FAMILY = Family(
    "x86",
    ("x86_64",),
    (
        Target(
            "x86-64",
            _TRIPLE,
            "x86-64",
            vector_bits=128,
            vector_registers=16,
            **_products(()),
            **_NARROW,
        ),
        Target(
            "x86-64-v3",
            _TRIPLE,
            "x86-64-v3",
            _V3,
            vector_bits=256,
            vector_registers=16,
            has_fma=True,
            **_products(_V3),
            **_WIDE,
        ),
        Target(
            "x86-64-v4",
            _TRIPLE,
            "x86-64-v4",
            _V4,
            vector_bits=512,
            vector_registers=32,
            has_fma=True,
            l2=1024 * 1024,
            rated=True,
            **_products(_V4),
            **_WIDE,
        ),
    ),
    describe,
)
