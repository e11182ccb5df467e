"""`tw.load`: a package, or the file of a saved program, as a function of arrays.

Packages are loaded by `tilewright_runtime`, which needs nothing else; what saved programs need is
loaded with the first of them.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from tilewright.base.errors import Invalid
from tilewright_runtime import is_package
from tilewright_runtime import load as load_package

_SAVED = "tilewright.driver.program.saved"


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    verify: bool = False,
    public_key: object = None,
    copy_weights: bool = False,
) -> Any:
    """Load what `tw.export` or `tw.save` wrote, to call it with arrays: a package as a
    `tilewright_runtime.Package`, a saved program as a `LoadedProgram`.

    Both hold native code, which runs in this process: load only what you trust. The options are
    those of packages, see `tilewright_runtime.load`: `public_key` takes only packages that were
    signed with its private key.
    """
    if is_package(path):
        return load_package(
            path,
            threads=threads,
            verify=verify,
            public_key=public_key,
            copy_weights=copy_weights,
        )
    if threads is not None or verify or public_key is not None or copy_weights:
        raise Invalid(
            f"{os.fspath(path)} is no package, and only packages are loaded with threads, verify, "
            "public_key or copy_weights",
            hint="tw.export writes packages",
        )
    return import_module(_SAVED).load(path)
