"""x86-64: SSE2 at least, AVX2 with FMA, AVX-512."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilewright.base.machine import registers_on_request
from tilewright.ir.product import Product, TileShape
from tilewright.ir.target import Target
from tilewright.targets.family import Family, Host
from tilewright.targets.x86 import intrinsics

_TRIPLE = "x86_64-unknown-linux-gnu"
_V3 = ("+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe", "+popcnt")
_V4 = (*_V3, "+avx512bw", "+avx512cd", "+avx512dq", "+avx512f", "+avx512vl")
# Bytes of a cycle that a core brings into each cache: what such processors sustain, not their peak.
_NARROW: dict[str, Any] = {"l2_bandwidth": 24, "l3_bandwidth": 10, "memory_bandwidth": 7}
_WIDE: dict[str, Any] = {"l2_bandwidth": 40, "l3_bandwidth": 10, "memory_bandwidth": 7, "issue": 5}

_AVX, _AVX512 = "cpuid:1:0:ecx:27 xcr0:6", "cpuid:1:0:ecx:27 xcr0:230"
_TILES = "cpuid:1:0:ecx:27 xcr0:393216"


def _tests() -> dict[str, str]:
    """How a program asks the processor for a feature: a bit of a register, and for wide registers
    whether the system saves them."""
    places = {
        "1:0:ecx": "sse3:0 pclmul:1 ssse3:9 cx16:13 sse4.1:19 sse4.2:20 movbe:22 popcnt:23 aes:25",
        "7:0:ebx": "bmi:3 bmi2:8 adx:19 sha:29",
        "7:0:ecx": "gfni:8 movdiri:27 movdir64b:28",
        "2147483649:0:ecx": "lzcnt:5",
    }
    avx = {
        "1:0:ecx": "fma:12 avx:28 f16c:29",
        "7:0:ebx": "avx2:5",
        "7:0:ecx": "vaes:9 vpclmulqdq:10",
        "7:1:eax": "avxvnni:4 avxifma:23",
        "7:1:edx": "avxvnniint8:4 avxneconvert:5 avxvnniint16:10",
    }
    wide = {
        "7:0:ebx": "avx512f:16 avx512dq:17 avx512ifma:21 avx512cd:28 avx512bw:30 avx512vl:31",
        "7:0:ecx": "avx512vbmi:1 avx512vbmi2:6 avx512vnni:11 avx512bitalg:12 avx512vpopcntdq:14",
        "7:0:edx": "avx512vp2intersect:8 avx512fp16:23",
        "7:1:eax": "avx512bf16:5",
    }
    tiles = {"7:0:edx": "amx-bf16:22 amx-tile:24 amx-int8:25", "7:1:eax": "amx-fp16:21"}
    found = {}
    for table, system in ((places, ""), (avx, _AVX), (wide, _AVX512), (tiles, _TILES)):
        for register, bits in table.items():
            for feature, bit in (x.split(":") for x in bits.split()):
                found[feature] = f"{system} cpuid:{register}:{bit}".strip()
    return found


def _wide(features: Collection[str]) -> bool:
    """32-bit and 64-bit lanes need F, the narrower ones BW; a processor with F alone stays at
    AVX2."""
    return {"+avx512f", "+avx512bw", "+avx512vl", "+avx512dq"} <= set(features)


def _products(features: Collection[str]) -> tuple[Product, ...]:
    """What default schedules multiply with, the best first: tiles, dot products, multiply-adds."""
    found = [p for p, needs in intrinsics.TILES if needs in features]
    found += _dot_products(features)
    if _wide(features):
        found.append(intrinsics.AVX512_FMA)
    elif {"+avx2", "+fma"} <= set(features):
        found.append(intrinsics.AVX2_FMA)
    return tuple(found)


def _dot_products(features: Collection[str]) -> list[Product]:
    """Dot products of the widest vectors that there are. Sums of pairs are for processors without
    any of bytes."""
    lanes = _vectors(features)["vector_bits"] // 32
    known = [p for p, needs in intrinsics.DOTS if needs <= set(features) and p.lanes == lanes]
    bytes_ = any(p.a.bytes == 1 for p in known)
    return [p for p in known if not (bytes_ and p.a.is_int and p.a.bytes == 2)]


# Every step of a sum loads the columns' vectors, and one element per row, which is spread over a
# vector where it is loaded. Two vectors per row hide that, three where there are registers for
# them. More rows than these win nothing.
_FEW_TILES = (TileShape(6, 2, 6), TileShape(14, 1, 8))
_MANY_TILES = (TileShape(8, 3, 8), TileShape(14, 2, 8), TileShape(14, 1, 8))


def _vectors(features: Collection[str]) -> dict[str, Any]:
    """The widest vectors, and how many registers hold them."""
    if _wide(features):
        return {"vector_bits": 512, "vector_registers": 32, "tiles": _MANY_TILES}
    bits = 256 if "+avx2" in features else 128
    return {"vector_bits": bits, "vector_registers": 16, "tiles": _FEW_TILES}


def _features(features: Collection[str]) -> dict[str, Any]:
    """What a target says of instructions and vectors."""
    return {
        **_vectors(features),
        "has_fma": "+fma" in features,
        "has_f16": "+avx512fp16" in features,
        "converts_f16": "+f16c" in features,
        "rounds": not {"+sse4.1", "+avx"}.isdisjoint(features),
        "saturates": False,
        "has_masks": not {"+avx", "+avx512f"}.isdisjoint(features),
        "masked_bytes": 1 if "+avx512bw" in features else 4,
        # Those of AVX2 alone are no faster than one read a lane.
        "gathers": _wide(features),
        "products": _products(features),
        **(_WIDE if "+avx2" in features else _NARROW),
    }


def describe(host: Host) -> Target:
    """The host's target: the widest vectors it has, tiles if the system lets us use them."""
    features = host.cpu.features
    if "+amx-tile" in features and not registers_on_request():
        # Switched off, not left out: the processor's name would bring them back.
        features = tuple(f"-{f[1:]}" if f.startswith("+amx") else f for f in features)
    # Rated: measured on a server with AVX-512, nowhere else yet.
    return host.target(features, **_features(features), rated=_wide(features))


FAMILY = Family(
    "x86",
    ("x86_64",),
    (
        Target("x86-64", _TRIPLE, "x86-64", **_features(())),
        Target("x86-64-v3", _TRIPLE, "x86-64-v3", _V3, **_features(_V3)),
        Target(
            "x86-64-v4",
            _TRIPLE,
            "x86-64-v4",
            _V4,
            l2=1024 * 1024,
            rated=True,
            **_features(_V4),
        ),
    ),
    describe,
    tests=_tests(),
)
