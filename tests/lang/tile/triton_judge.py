"""Random kernels as Triton's own interpreter runs them, where Triton is installed:
`TRITON_INTERPRET=1 pytest tests/lang/tile/test_random_kernels.py`.

The same text is run with Triton in the place of this package. The interpreter is not Triton: it
computes with numpy, and with Python where no tensor is at hand. Where it is known to give other
results than Triton's compiler, or none, it abstains, with a reason.
"""

from __future__ import annotations

import importlib
import linecache
import os
import re
from functools import cache
from typing import Any

import numpy as np

from tests.lang.tile.random_values import BOOL, FP8, INTS, dtype_of
from tests.lang.tile.random_writer import Kernel


class Abstains(Exception):
    """The interpreter has no opinion on a kernel."""


# What the text of a kernel has that the interpreter does not know, or computes as something else.
UNKNOWN = {
    r"\blibdevice\.": "functions of libdevice are not interpreted",
    r"bfloat16": "bfloat16 is stored as uint16, and computed with as such",
    r"float8": "eight-bit floats are stored as uint8, and computed with as such",
}
# Errors that come from how the interpreter is made.
LIMITS = {
    r"(int|float|bool)\W+ object has no attribute": "numbers are Python's until they meet a tensor",
    r"Block pointers have been removed": "block pointers are gone from newer versions",
    r"must be 16-byte aligned": "descriptors are of aligned memory only",
    r"has no attribute \W+new_block": "tl.map_elementwise is not interpreted",
    r"dtype\W+ object has no attribute \W+numel": "one number has no shape that could be changed",
    r"Expected dtype \[\W+fp32": "functions are of float32 and float64 only",
    r"only minor dimension": "tl.sort and tl.topk are along the last axis only",
}


@cache
def enabled() -> bool:
    """Is it wanted, and there? `TRITON_INTERPRET=1` says so: the interpreter has to be chosen
    before Triton is imported."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return False
    try:
        return hasattr(_triton(), "knobs") and _triton().knobs.runtime.interpret is True
    except ImportError:
        return False


def _triton() -> Any:
    importlib.import_module("triton.language")
    return importlib.import_module("triton")


def interpreted(k: Kernel, arrays: dict[str, Any]) -> None:
    """Runs a kernel over arrays of `random_running`."""
    source = k.source()
    dtypes = {s.dtype for s in k.arrays.values()}
    for pattern, why in UNKNOWN.items():
        if re.search(pattern, source) or any(re.search(pattern, d) for d in dtypes):
            raise Abstains(why)
    if "float16" in f"{dtypes} {source}" and any(type(x) is float for x in k.numbers.values()):
        raise Abstains("floats of a launch stay Python's, which have no type: not float32")
    triton = _triton()
    name = f"<random kernel {k.seed} for triton: {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"tw": triton, "tl": triton.language}
    try:
        exec(compile(source, name, "exec"), scope)
        given = {n: _given(arrays.get(n), k.numbers.get(n), triton) for n in k.parameters}
        with np.errstate(all="ignore"):
            scope["kernel"][k.grid](**given)
    except Exception as problem:
        for pattern, why in LIMITS.items():
            if re.search(pattern, str(problem)):
                raise Abstains(why) from problem
        raise


def _given(array: Any, number: Any, triton: Any) -> Any:
    import torch

    if array is None:
        known = (*INTS, *FP8, BOOL, "float16", "bfloat16", "float32", "float64")
        found = [n for n in known if not isinstance(number, (int, float)) and dtype_of(n) == number]
        return getattr(triton.language, found[0]) if found else number
    name = "bool" if array.spec.dtype == BOOL else array.spec.dtype
    first = array.address - array.whole.ctypes.data
    size = array.element.bytes
    last = first + (len(array.whole) - first) // size * size
    return torch.from_numpy(array.whole)[first:last].view(getattr(torch, name))
