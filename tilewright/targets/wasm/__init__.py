"""WebAssembly with 32-bit addresses: SIMD128, and relaxed SIMD, whose multiply-add may be fused;
each for one thread, or for several that share memory.

There is no host of this kind: code runs in a browser or another engine.
"""

from __future__ import annotations

from tilewright.base.errors import Unsupported
from tilewright.ir.product import Product, TileShape
from tilewright.ir.target import Target
from tilewright.runtime.pool_ir import SERIAL_POOL
from tilewright.runtime.worker_pool_ir import WORKER_POOL
from tilewright.targets.family import Family, Host
from tilewright.targets.wasm import intrinsics
from tilewright.targets.wasm.support import SUPPORT

_TRIPLE = "wasm32-unknown-unknown"
_FEATURES = (
    "+simd128",
    "+sign-ext",
    "+nontrapping-fptoint",
    "+bulk-memory",
    "+bulk-memory-opt",
    "+mutable-globals",
)


# With threads: loops are divided for so many, as pages of phones have.
_SHARED, _CORES = ("+atomics",), 4


def _wasm(
    name: str, features: tuple[str, ...], products: tuple[Product, ...], cores: int = 1
) -> Target:
    """What engines make of it: registers of x86-64 are the fewest. A kernel's stack is small.

    Two vectors for each element that is spread: of three, sums and operands are more than the
    fifteen vectors that V8 has on x86-64. In Chromium on a Cascade Lake, a small BERT takes 0.8 of
    the time with relaxed SIMD, 0.93 without it. On a Neoverse N1, which has registers for three,
    relaxed products in LLVM's order were 8 % slower with two."""
    return Target(
        name,
        _TRIPLE,
        "generic",
        features,
        vector_registers=16,
        pointer_bits=32,
        converts_f16=False,
        stack=64 * 1024,
        prefetch=0,
        cores=cores,
        tiles=(TileShape(4, 2, 4), TileShape(6, 1, 8)),
        products=products,
    )


def describe(host: Host) -> Target:
    raise Unsupported("WebAssembly is not the machine that this process runs on")


def pool(target: Target) -> str:
    return WORKER_POOL if target.has("atomics") else SERIAL_POOL


_RELAXED = (*_FEATURES, "+relaxed-simd")
# Modules of one function each, with an instruction of the kind. Engines that have vectors have the
# other features too.
_TESTS = {
    "simd128": "validate:0061736d010000000105016000017b030201000a0a0108004100fd0ffd620b",
    "relaxed-simd": "validate:0061736d0100000001060160017b017b030201000a0d010b00200020002000"
    "fd85020b",
    "atomics": "validate:0061736d010000000105016000017f030201000504010301010a0a0108004100"
    "fe1002000b shared",
}

FAMILY = Family(
    "wasm",
    ("wasm32",),
    (
        _wasm("wasm32", _FEATURES, intrinsics.APART),
        _wasm("wasm32-relaxed", _RELAXED, intrinsics.RELAXED),
        _wasm("wasm32-threads", (*_FEATURES, *_SHARED), intrinsics.APART, _CORES),
        _wasm("wasm32-relaxed-threads", (*_RELAXED, *_SHARED), intrinsics.RELAXED, _CORES),
    ),
    describe,
    system=frozenset({"__stack_pointer", "__indirect_function_table"}),
    support=SUPPORT,
    pool=pool,
    module=True,
    tests=_TESTS,
)
