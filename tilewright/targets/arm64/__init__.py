"""arm64: NEON, 128-bit vectors in 32 registers, fused multiply-add always."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tilewright.ir.target import Target
from tilewright.targets.arm64 import intrinsics as intrinsics  # declares them
from tilewright.targets.family import Family, Host

# LLVM's detection leaves these out; the kernel tells them under other names.
_FLAGS = {
    "asimddp": "+dotprod",
    "asimdfhm": "+fp16fml",
    "asimdhp": "+fullfp16",
    "atomics": "+lse",
    "bf16": "+bf16",
    "i8mm": "+i8mm",
    "lrcpc": "+rcpc",
}
# For estimates: two pipes of four cycles and two loads; bytes of a cycle as measured on one.
_RATES: dict[str, Any] = {
    "l2_bandwidth": 24,
    "l3_bandwidth": 10,
    "memory_bandwidth": 7,
    "rated": True,
}


_FMA = ("arm64.fma", "arm64.fma.rows")


def _dots(features: Collection[str]) -> dict[str, Any]:
    """Instructions that default schedules try, and the products that dot products add up."""
    found = [(product, name) for product, name, needs in intrinsics.DOTS if needs in features]
    names = tuple(name for _, name in found)
    return {"instructions": (*names, *_FMA), "dots": tuple(product for product, _ in found)}


def describe(host: Host) -> Target:
    """The host's target: NEON, with the extensions the kernel reports."""
    told = {feature for flag, feature in _FLAGS.items() if flag in host.flags}
    known = {feature[1:]: feature for feature in (*host.cpu.features, *told)}
    features = tuple(known[name] for name in sorted(known))
    return Target(
        name="host",
        triple=host.cpu.triple,
        cpu=host.cpu.cpu,
        features=features,
        vector_bits=128,
        vector_registers=32,
        has_fma=True,
        has_f16="+fullfp16" in features,
        l1=host.caches.l1,
        l2=host.caches.l2,
        l3=host.caches.l3,
        cores=host.cores,
        **_dots(features),
        **_RATES,
    )


FAMILY = Family(
    "arm64",
    ("aarch64", "arm64"),
    (
        Target(
            "arm64",
            "aarch64-unknown-linux-gnu",
            "generic",
            ("+fp-armv8", "+neon"),
            vector_bits=128,
            vector_registers=32,
            has_fma=True,
            instructions=_FMA,
            **_RATES,
        ),
    ),
    describe,
)
