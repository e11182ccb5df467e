"""Runs packages that Tilewright exported: plain Python, no other dependency.

    import tilewright_runtime as twr
    net = twr.load("net.twp")
    y = net(x)                          # arrays of numpy, or of any library with __dlpack__
    (y,) = net.run(None, {"x": x})

A package holds native code, which runs in your process: load only what you trust.
"""

from __future__ import annotations

from tilewright_runtime.files import is_package
from tilewright_runtime.package import Package, Tensor, load
from tilewright_runtime.sentences import PackageError
from tilewright_runtime.verify import verify

__version__ = "0.1.0"

__all__ = ["Package", "PackageError", "Tensor", "is_package", "load", "verify"]
