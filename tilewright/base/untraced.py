"""What torch.compile's tracer, Dynamo, leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# What a launch runs. Dynamo would trace all of it if it met a launch in a function of its own.
UNTRACED = """driver.tile_jit driver.tile_launch driver.tile_arguments driver.tile_autotune
    driver.tile_overlap driver.tile_kept driver.tile_compile driver.tile_testing base lang kernel
    llvm runtime targets""".split()


def keep_untraced(trace_rules: Any) -> None:
    """Tell `torch._dynamo.trace_rules` which files are not for it."""
    for name in UNTRACED:
        trace_rules.add(f"tilewright.{name}")


def untraced(function: F) -> F:
    """Functions that torch compiles do not look into it: their graph ends before and goes on after
    it. It is torch's own mark, put without importing torch."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
