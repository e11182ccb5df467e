"""ONNX models as native code: `tw.onnx.load("model.onnx").run(None, {"x": array})`."""

from __future__ import annotations

from tilewright.base.errors import MissingExtra

try:
    import onnx as _onnx  # noqa: F401
except ImportError:
    raise MissingExtra("onnx", "reading ONNX models") from None

from tilewright.driver.onnx.session import Argument, Session, load

__all__ = ["Argument", "Session", "load"]
