"""Tilewright: a machine-learning compiler in Python.

    import tilewright as tw
    fast = torch.compile(model, backend="tilewright")      # or
    fast = tw.compile(model, *example_inputs, strict=True)
    print(tw.explain(fast))

    @tw.jit                                                # a kernel over tiles: Triton's language,
    def add(x, y, out, n, BLOCK: tl.constexpr): ...        # tilewright.language as tl
    add[(tw.cdiv(n, 1024),)](x, y, out, n, BLOCK=1024)

Names are imported when they are first used: `import tilewright` costs next to nothing and needs
no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright import ir, language, onnx, ops, te, testing, tune
    from tilewright.base import errors
    from tilewright.base.errors import (
        Invalid,
        MissingExtra,
        Refused,
        TilewrightError,
        Unsupported,
    )
    from tilewright.base.events import recording as record
    from tilewright.capture.torch.sparse import SparseMatrix
    from tilewright.driver.api import compile, refresh, synchronize
    from tilewright.driver.export.api import export
    from tilewright.driver.export.to_onnx import to_onnx
    from tilewright.driver.loading import load
    from tilewright.driver.looking.explain import explain
    from tilewright.driver.program.default_passes import passes
    from tilewright.driver.program.options import Options
    from tilewright.driver.program.programs import compile_graph
    from tilewright.driver.saving import save
    from tilewright.driver.te.build import build, lower
    from tilewright.driver.tile.arguments import TensorDescriptor
    from tilewright.driver.tile.autotune import Config, autotune, heuristics
    from tilewright.driver.tile.jit import (
        JITFunction,
        cdiv,
        constexpr_function,
        jit,
        next_power_of_2,
        reinterpret,
    )
    from tilewright.ir.passes import Pass
    from tilewright.ir.pipeline import Pipeline
    from tilewright.runtime.pool import get_threads, set_threads
    from tilewright_runtime import PackageError

__version__ = "0.1.0"

# name: module that holds it (the name itself, or `module:name` where they differ)
_FACE = {
    "compile": "tilewright.driver.api",
    "refresh": "tilewright.driver.api",
    "synchronize": "tilewright.driver.api",
    "save": "tilewright.driver.saving",
    "load": "tilewright.driver.loading",
    "explain": "tilewright.driver.looking.explain",
    "export": "tilewright.driver.export.api",
    "to_onnx": "tilewright.driver.export.to_onnx",
    "lower": "tilewright.driver.te.build",
    "build": "tilewright.driver.te.build",
    "record": "tilewright.base.events:recording",
    "compile_graph": "tilewright.driver.program.programs",
    "SparseMatrix": "tilewright.capture.torch.sparse",
    "Options": "tilewright.driver.program.options",
    "Pass": "tilewright.ir.passes",
    "Pipeline": "tilewright.ir.pipeline",
    "passes": "tilewright.driver.program.default_passes",
    "jit": "tilewright.driver.tile.jit",
    "JITFunction": "tilewright.driver.tile.jit",
    "constexpr_function": "tilewright.driver.tile.jit",
    "cdiv": "tilewright.driver.tile.jit",
    "next_power_of_2": "tilewright.driver.tile.jit",
    "reinterpret": "tilewright.driver.tile.jit",
    "TensorDescriptor": "tilewright.driver.tile.arguments",
    "autotune": "tilewright.driver.tile.autotune",
    "heuristics": "tilewright.driver.tile.autotune",
    "Config": "tilewright.driver.tile.autotune",
    "set_threads": "tilewright.runtime.pool",
    "get_threads": "tilewright.runtime.pool",
    "TilewrightError": "tilewright.base.errors",
    "Invalid": "tilewright.base.errors",
    "MissingExtra": "tilewright.base.errors",
    "PackageError": "tilewright_runtime",
    "Refused": "tilewright.base.errors",
    "Unsupported": "tilewright.base.errors",
}
_MODULES = {
    "errors": "tilewright.base.errors",
    "ir": "tilewright.ir",
    "language": "tilewright.language",
    "onnx": "tilewright.onnx",
    "ops": "tilewright.ops",
    "te": "tilewright.te",
    "testing": "tilewright.testing",
    "tune": "tilewright.tune",
}

__all__ = [
    "Config",
    "Invalid",
    "JITFunction",
    "MissingExtra",
    "Options",
    "PackageError",
    "Pass",
    "Pipeline",
    "Refused",
    "SparseMatrix",
    "TensorDescriptor",
    "TilewrightError",
    "Unsupported",
    "autotune",
    "build",
    "cdiv",
    "compile",
    "compile_graph",
    "constexpr_function",
    "errors",
    "explain",
    "export",
    "get_threads",
    "heuristics",
    "ir",
    "jit",
    "language",
    "load",
    "lower",
    "next_power_of_2",
    "onnx",
    "ops",
    "passes",
    "record",
    "refresh",
    "reinterpret",
    "save",
    "set_threads",
    "synchronize",
    "te",
    "testing",
    "to_onnx",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = import_module(_MODULES[name])
    elif name in _FACE:
        module, _, attribute = _FACE[name].partition(":")
        found = getattr(import_module(module), attribute or name)
    else:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
