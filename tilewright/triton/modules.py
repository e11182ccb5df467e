"""Triton's modules, by name, made of ours.

Modules of a checkout that the user points to are found behind ours: `triton._internal_testing` and
other plain Python that is not Triton's compiler.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import tilewright.testing as testing
from tilewright.base.errors import TilewrightError
from tilewright.driver.tile import arguments as tile_arguments
from tilewright.driver.tile import autotune as tile_autotune
from tilewright.driver.tile import jit as tile_jit
from tilewright.driver.tile import launch as tile_launch
from tilewright.lang.tile.front import diagnostics
from tilewright.lang.tile.front.functions import (
    ConstexprFunction,
    Parameter,
    TileFunction,
    must_use_result,
)
from tilewright.lang.tile.language import core
from tilewright.triton import cache_files, hosting, knobs, performance, profiling

# The version of Triton whose language this is.
VERSION = "3.9.0"

# Modules of ours that stand for one of Triton's as they are.
_ALIASES = {
    "triton.language": "tilewright.language",
    "triton.language.core": "tilewright.lang.tile.language.core",
    "triton.language.semantic": "tilewright.lang.tile.language.semantic",
    "triton.language.standard": "tilewright.lang.tile.library.standard",
    "triton.language.random": "tilewright.lang.tile.library.random",
    "triton.language.math": "tilewright.lang.tile.library.math",
    "triton.language.extra": "tilewright.language.extra",
    "triton.language.extra.libdevice": "tilewright.lang.tile.library.libdevice",
    "triton.language.extra.cuda": "tilewright.language.extra.cuda",
    "triton.language.extra.cuda.libdevice": "tilewright.lang.tile.library.libdevice",
    "triton.language.extra.hip": "tilewright.language.extra.hip",
    "triton.language.extra.hip.libdevice": "tilewright.lang.tile.library.libdevice",
    "triton.language.target_info": "tilewright.language.target_info",
    "triton.language.extra.cpu": "tilewright.language.extra",
    "triton.language.extra.cpu.libdevice": "tilewright.lang.tile.library.libdevice",
    "triton.knobs": "tilewright.triton.knobs",
    "triton.tools.ragged_tma": "tilewright.triton.ragged",
}


def _take(module: Any, names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names.split()}


def _contents() -> dict[str, dict[str, Any]]:
    """What each module that is no alias holds. Packages come before what is in them."""
    tuning = _take(tile_autotune, "Autotuner Config Heuristics autotune heuristics")
    functions = _take(tile_jit, "JITFunction KernelInterface MockTensor TensorWrapper reinterpret")
    errors = {
        **_take(hosting, "OutOfResources InterpreterError"),
        "AutotunerError": TilewrightError,
        "PTXASError": hosting.OutOfResources,
    }
    failures = {
        "CompilationError": diagnostics.CompileError,
        "CompileTimeAssertionFailure": diagnostics.StaticAssertionError,
        "UnsupportedLanguageConstruct": diagnostics.CompileError,
    }
    compiling = {
        **_take(hosting, "ASTSource IRSource compile make_backend max_shared_mem"),
        "LazyDict": knobs.LazyDict,
        "AsmDict": tile_launch.Texts,
        "CompiledKernel": tile_launch.CompiledKernel,
    }
    names = _take(
        hosting,
        "type_canonicalisation_dict canonicalize_dtype canonicalize_ptr_dtype validate_block_shape "
        "is_power_of_two get_primitive_bitwidth",
    )
    files = _take(
        cache_files,
        "CacheManager FileCacheManager get_cache_manager get_override_manager get_dump_manager "
        "default_cache_dir _base32",
    )
    constants = _take(tile_jit, "cdiv next_power_of_2")
    decorators = _take(tile_jit, "jit constexpr_function")
    base = {"TritonError": TilewrightError}
    descriptors = _take(tile_arguments, "TensorDescriptor")
    return {
        "triton": {
            "__version__": VERSION,
            **tuning,
            **functions,
            **decorators,
            **constants,
            **base,
            **_take(hosting, "OutOfResources InterpreterError compile set_allocator"),
            "CompilationError": diagnostics.CompileError,
            "must_use_result": must_use_result,
            "aggregate": core.aggregate,
        },
        "triton._C": {},
        "triton._C.libtriton": {
            "nvidia": SimpleNamespace(cublas=SimpleNamespace(CublasLt=performance.CublasLt))
        },
        "triton.errors": base,
        "triton._utils": {
            **names,
            **_take(hosting, "find_paths_if get_iterable_path is_iterable is_namedtuple"),
            "TRITON_MAX_TENSOR_NUMEL": core.TRITON_MAX_TENSOR_NUMEL,
        },
        "triton.testing": {
            **{name: getattr(testing, name) for name in testing.__all__},
            **_take(
                performance,
                "get_dram_gbps get_max_simd_tflops get_max_tensorcore_tflops set_gpu_clock "
                "cuda_memcheck cuda_graph_without_gc nvsmi",
            ),
            "do_bench_proton": testing.do_bench,
            "do_bench_cudagraph_proton": testing.do_bench_cudagraph,
        },
        "triton.ops": {"matmul": performance.matmul},
        "triton.ops.matmul": {"matmul": performance.matmul, "_matmul": performance.matmul},
        "triton.ops.matmul_perf_model": _take(
            performance, "early_config_prune estimate_matmul_time get_max_simd_tflops"
        )
        | {"get_dram_gbps": performance.get_dram_gbps},
        "triton.experimental": {},
        "triton.runtime": {**tuning, **functions, **errors, "driver": hosting.driver},
        "triton.runtime.jit": {
            **functions,
            **decorators,
            **names,
            "ConstexprFunction": ConstexprFunction,
            "JITCallable": TileFunction,
            "KernelParam": Parameter,
            "get_full_name": lambda fn: f"{fn.__module__}.{fn.__qualname__}",
        },
        "triton.runtime.autotuner": {**tuning, **errors, **functions, "driver": hosting.driver},
        "triton.runtime.errors": {**errors, **base},
        "triton.runtime.driver": {"driver": hosting.driver, "DriverConfig": hosting.DriverConfig},
        "triton.runtime.cache": {**files, "triton_key": lambda: VERSION, "knobs": knobs},
        "triton.runtime.interpreter": {**_take(hosting, "InterpretedFunction"), **errors},
        "triton.runtime._allocation": _take(
            hosting, "NullAllocator set_allocator set_profile_allocator has_profile_allocator"
        ),
        "triton.compiler": {**compiling, **failures},
        "triton.compiler.compiler": compiling,
        "triton.compiler.errors": {**failures, **base},
        "triton.backends": _take(hosting, "backends Backend BaseBackend"),
        "triton.backends.compiler": _take(hosting, "GPUTarget BaseBackend"),
        "triton.backends.driver": {"DriverBase": hosting.CPUDriver, "GPUDriver": hosting.CPUDriver},
        "triton.profiler": _take(profiling, "start activate deactivate finalize scope profile"),
        "triton.profiler.viewer": _take(profiling, "parse print_tree"),
        "triton.tools": {},
        "triton.tools.tensor_descriptor": descriptors,
    }


def made(checkout: Path | None) -> dict[str, ModuleType]:
    """All modules, each an attribute of the one that holds it."""
    found: dict[str, ModuleType] = {}
    for name, contents in _contents().items():
        module = found[name] = ModuleType(name, f"{name}, by Tilewright")
        folder = None if checkout is None else checkout.joinpath(*name.split(".")[1:])
        paths = [str(folder)] if folder is not None and folder.is_dir() else []
        spec = ModuleSpec(name, None, origin="tilewright", is_package=True)
        spec.submodule_search_locations = paths
        module.__spec__, module.__path__ = spec, paths
        module.__dict__.update(contents)
    for name, ours in _ALIASES.items():
        found[name] = import_module(ours)
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        # `triton.runtime.driver` is the driver, as in Triton: it replaces the module of that name.
        if parent in found and name not in _ALIASES and not hasattr(found[parent], last):
            setattr(found[parent], last, module)
    for name in ("language", "knobs"):
        setattr(found["triton"], name, found[f"triton.{name}"])
    return found


def checkout_around(path: Path) -> Path | None:
    """The `triton` folder of a checkout in which a file lies, if it does."""
    for folder in path.resolve().parents:
        for candidate in (folder / "triton", folder / "python" / "triton"):
            if (candidate / "_internal_testing.py").is_file():
                return candidate
    return None


def ours(name: str) -> bool:
    """Is it one of Triton's modules?"""
    return name == "triton" or name.startswith("triton.")


def put(modules: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """Register modules in `sys.modules` and remove those of another Triton; returns the old
    ones."""
    before = {name: m for name, m in sys.modules.items() if ours(name)}
    for name in before:
        del sys.modules[name]
    sys.modules.update(modules)
    return before


__all__ = ["VERSION", "checkout_around", "knobs", "made", "ours", "put"]
