"""Tilewright in Triton's place: after `install()`, `import triton` gives ours.

    import tilewright.triton
    tilewright.triton.install(device="cpu")   # scripts that say device="cuda" run on the CPU
    import triton, triton.language as tl

or, without a change to a file: `python -m tilewright.triton --device cpu script.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

from tilewright.base.errors import Invalid
from tilewright.base.knobs import interpret, triton_backend
from tilewright.driver.tile.jit import DEFAULTS
from tilewright.runtime.cuda.device import device as gpu
from tilewright.triton import absent, compiling, hosting, modules, redirect

__all__ = ["install", "installed", "uninstall"]

_before: dict[str, ModuleType] | None = None


def install(device: str | None = None, checkout: str | Path | None = None) -> ModuleType:
    """Make ours importable as `triton` and its modules; gives the module.

    With `device="cpu"` torch makes tensors for a GPU on the CPU instead. `checkout` is a folder of
    Triton's sources, from which modules are imported that this package does not have, such as the
    helpers of its tests.
    """
    global _before
    if device not in (None, "cpu"):
        raise Invalid(f"device {device!r}", hint='"cpu", or None to leave torch as it is')
    found = None
    if checkout is not None:
        found = _package(Path(checkout))
    if os.environ.get("TRITON_INTERPRET") == "1":
        os.environ.setdefault(interpret.name, "1")
    DEFAULTS.causes = True
    made = modules.made(found)
    before = modules.put(made)
    if _before is None:
        _before = before
    absent.attach()
    compiling.attach(redirect.replace)
    if device == "cpu":
        redirect.redirect()
    elif triton_backend.get() is None and hosting.on_gpu():
        os.environ[triton_backend.name] = f"cuda:{gpu(0).capability}"
    return made["triton"]


def uninstall() -> None:
    """Undo `install`. Modules that imported names in between keep them."""
    global _before
    absent.detach()
    redirect.undo()
    DEFAULTS.causes = False
    if _before is not None:
        modules.put(_before)
        _before = None


def installed() -> bool:
    return _before is not None and "triton" in sys.modules


def _package(folder: Path) -> Path:
    for candidate in (folder, folder / "triton", folder / "python" / "triton"):
        if (candidate / "_internal_testing.py").is_file():
            return candidate
    raise Invalid(
        f"{folder} holds no sources of Triton",
        hint="point to the folder that holds python/triton",
    )
