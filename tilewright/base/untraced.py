"""What torch.compile's tracer, Dynamo, leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# What a launch runs. Dynamo would trace all of it if it met a launch in a function of its own.
UNTRACED = """driver/tile_jit.py driver/tile_launch.py driver/tile_arguments.py
    driver/tile_autotune.py driver/tile_overlap.py driver/tile_kept.py driver/tile_compile.py
    driver/tile_testing.py base lang kernel llvm runtime targets""".split()
# What functions call outside kernels too, to compute a grid: `cdiv` and its like.
TRACED = ("lang/tile/front/functions.py", "lang/tile/language/types.py")


def keep_untraced(trace_rules: Any) -> None:
    """Tell `torch._dynamo.trace_rules` which files are not for it."""
    root = Path(__file__).resolve().parent.parent
    kept = {root / name for name in TRACED}
    for name in UNTRACED:
        for path in _without(root / name, kept):
            module = ".".join(path.with_suffix("").relative_to(root.parent).parts)
            trace_rules.add(module)


def _without(path: Path, kept: Collection[Path]) -> Iterator[Path]:
    """A file or folder, or what is in it besides some files."""
    if not any(path == k or path in k.parents for k in kept):
        yield path
    elif path.is_dir():
        for inner in sorted(path.iterdir()):
            if inner.suffix == ".py" or (inner / "__init__.py").exists():
                if inner.name != "__init__.py":
                    yield from _without(inner, kept)


def untraced(function: F) -> F:
    """Functions that torch compiles do not look into it: their graph ends before and goes on after
    it. It is torch's own mark, put without importing torch."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
