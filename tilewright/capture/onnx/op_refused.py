"""Operators that are refused by name, with the reason."""

from __future__ import annotations

from tilewright.capture.onnx.context import refuse_operators

refuse_operators("control flow is not translated yet", "Loop", "Scan", "SequenceMap")
refuse_operators("a condition that depends on data is not translated yet", "If")
refuse_operators("recurrent networks are not translated yet", "RNN", "LSTM", "GRU")
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
