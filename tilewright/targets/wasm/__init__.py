"""WebAssembly with 32-bit addresses: SIMD128, and relaxed SIMD, whose multiply-add may be fused;
each for one thread, or for several that share memory.

There is no host of this kind: code runs in a browser or another engine.
"""

from __future__ import annotations

from tilewright.base.errors import Unsupported
from tilewright.ir.product import TileShape
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


_RELAXED = ("+relaxed-simd",)
# With threads: loops are divided for so many, as pages of phones have.
_SHARED, _CORES = ("+atomics",), 4
_MANY = ("+engine.vectors32",)
# Three vectors for each element that is spread, and in fifteen registers no more rows: of four,
# sums and operands would be in memory. All targets have columns of as many vectors, so that they
# read the same weights.
_TILES = {
    False: (TileShape(3, 3, 3), TileShape(4, 2, 4), TileShape(6, 1, 8)),
    True: (TileShape(4, 3, 4), TileShape(4, 2, 4), TileShape(6, 1, 8)),
}


def _wasm(relaxed: bool, threads: bool, many: bool) -> Target:
    """What engines make of it: on x86-64 they have fifteen vectors, on Arm (`many`) 32. A kernel's
    stack is small."""
    words = [
        word for word, held in (("relaxed", relaxed), ("threads", threads), ("arm", many)) if held
    ]
    return Target(
        "-".join(["wasm32", *words]),
        _TRIPLE,
        "generic",
        _FEATURES + _RELAXED * relaxed + _SHARED * threads + _MANY * many,
        vector_registers=16,
        pointer_bits=32,
        converts_f16=False,
        maximum=many,  # V8 has eight instructions for one on x86-64, and one on Arm
        stack=64 * 1024,
        prefetch=0,
        cores=_CORES if threads else 1,
        tiles=_TILES[many],
        products=intrinsics.PRODUCTS[relaxed, many],
    )


def describe(host: Host) -> Target:
    raise Unsupported("WebAssembly is not the machine that this process runs on")


def pool(target: Target) -> str:
    return WORKER_POOL if target.has("atomics") else SERIAL_POOL


# Modules of one function each, with an instruction of the kind. Engines that have vectors have the
# other features too.
_TESTS = {
    "simd128": "validate:0061736d010000000105016000017b030201000a0a0108004100fd0ffd620b",
    "relaxed-simd": "validate:0061736d0100000001060160017b017b030201000a0d010b00200020002000"
    "fd85020b",
    "atomics": "validate:0061736d010000000105016000017f030201000504010301010a0a0108004100"
    "fe1002000b shared",
    # Infinity less itself is a number that is none, whose sign is set on x86 alone.
    "engine.vectors32": "run:0061736d010000000105016000017f030201000609017d01430000807f0b"
    "070501017200000a0d010b002300230093bc41004e0b",
}

_BOTH = (False, True)
_PRESETS = tuple(_wasm(r, t, m) for m in _BOTH for t in _BOTH for r in _BOTH)

FAMILY = Family(
    "wasm",
    ("wasm32",),
    _PRESETS,
    describe,
    system=frozenset({"__stack_pointer", "__indirect_function_table"}),
    support=SUPPORT,
    pool=pool,
    module=True,
    tests=_TESTS,
)
