"""Which files torch.compile's tracer, Dynamo, does not trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# What a launch runs. Dynamo would trace all of it where a compiled function launches a kernel.
UNTRACED = """driver/tile/jit.py driver/tile/calls.py driver/tile/launch.py
    driver/tile/arguments.py
    driver/tile/autotune.py driver/tile/overlap.py driver/tile/tile_cache.py driver/tile/compile.py
    driver/tile/compiled.py
    driver/tile/testing.py base lang kernel llvm runtime targets""".split()
# Functions that are called outside kernels too, to compute a grid, such as `cdiv`.
TRACED = ("lang/tile/front/functions.py", "lang/tile/language/types.py")


def keep_untraced(trace_rules: Any) -> None:
    """Register these files with `torch._dynamo.trace_rules`; a second call changes nothing."""
    root = Path(__file__).parent.parent
    traced = {root / name for name in TRACED}
    paths = [path for name in UNTRACED for path in _without(root / name, traced)]
    # Folders end in a slash there, so that no longer name is taken for one of them.
    wanted = [f"{path}{os.sep}" if path.is_dir() else str(path) for path in paths]
    skipped, here = trace_rules.SKIP_DIRS, f"{root / 'base'}{os.sep}"
    if here not in skipped:
        # `add` compiles a pattern of all that is skipped, a large one: it is called once, for the
        # folder of this file, when the others are there.
        skipped.extend(path for path in wanted if path != here)
        trace_rules.add(__package__)


def _without(path: Path, traced: Collection[Path]) -> Iterator[Path]:
    """A file or folder, or what is in it besides some files."""
    if not any(path == k or path in k.parents for k in traced):
        yield path
    elif path.is_dir():
        for inner in sorted(path.iterdir()):
            if inner.suffix == ".py" or (inner / "__init__.py").exists():
                if inner.name != "__init__.py":
                    yield from _without(inner, traced)


def untraced(function: F) -> F:
    """torch.compile does not trace into the function: the graph breaks at its call. This sets
    torch's own mark without importing torch."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
