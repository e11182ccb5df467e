"""ONNX models as native code: `tw.onnx.load("model.onnx").run(None, {"x": array})`.

`python -m tilewright.onnx program.py` runs a program that imports onnxruntime with native code in
its place; `python -m tilewright.onnx model.onnx` prints what a model takes and gives.
"""

from __future__ import annotations

from tilewright.base.errors import MissingExtra

try:
    import onnx as _onnx  # noqa: F401
except ImportError:
    raise MissingExtra("onnx", "reading ONNX models") from None

from tilewright.driver.onnx.session import Argument, Session, load
from tilewright.driver.onnx.stand_in import install

__all__ = ["Argument", "Session", "install", "load"]

if __name__ == "__main__":
    import sys

    from tilewright.driver.onnx.command import main

    sys.exit(main(sys.argv[1:]))
