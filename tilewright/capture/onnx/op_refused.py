"""Operators that are refused by name, with the reason."""

from __future__ import annotations

from tilewright.capture.onnx.context import refuse_operators

refuse_operators(
    "strings have no native form",
    "StringConcat",
    "StringSplit",
    "StringNormalizer",
    "RegexFullMatch",
)
refuse_operators("images are not decoded", "ImageDecoder")
refuse_operators(
    "gradients of a model are not translated", "Gradient", domain="ai.onnx.preview.training"
)
