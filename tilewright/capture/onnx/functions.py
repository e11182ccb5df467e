"""Bodies of operators that are written in other operators: the model's own functions, and those
that ONNX's schemas give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from onnx import defs, helper

from tilewright.capture.onnx.context import Value
from tilewright.capture.onnx.elements import ELEMENT_OF, Narrow
from tilewright.ir.dim import Int
from tilewright.ir.node import Node


def schema_of(domain: str, name: str, opset: int) -> defs.OpSchema | None:
    try:
        return defs.get_schema(name, opset, domain)
    except defs.SchemaError:
        return None


def body_of(
    n: onnx.NodeProto,
    schema: Any,  # onnx declares only a part of what schemas have
    attributes: Mapping[str, Any],
    operands: Sequence[Value],
    opset: int,
) -> onnx.FunctionProto | None:
    """What ONNX says that an operator is in terms of others; None where it says nothing."""
    text = b""
    if schema.has_function:
        text = schema.get_function_with_opset_version(
            _fitting(schema.function_opset_versions, opset)
        )
    elif schema.has_context_dependent_function:
        node = onnx.NodeProto()
        node.CopyFrom(n)
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
        version = _fitting(schema.context_dependent_function_opset_versions, opset)
        text = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), [_type_of(x).SerializeToString() for x in operands]
        )
    if not text:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(text)
    return body if body.node else None


def defaults(schema: defs.OpSchema) -> dict[str, Any]:
    """Attributes that have a default, which bodies refer to."""
    found = schema.attributes.items()
    return {k: value_of(a.default_value) for k, a in found if a.default_value.name}


def value_of(a: onnx.AttributeProto) -> Any:
    """The value of an attribute: texts as `str`, tensors as they are."""
    found = helper.get_attribute_value(a)
    if isinstance(found, bytes):
        return found.decode(errors="replace")
    if a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(found)
    if a.type == onnx.AttributeProto.STRINGS:
        return [s.decode(errors="replace") for s in found]
    return found


def _fitting(versions: Sequence[int], opset: int) -> int:
    """The newest that is not newer than the model; the oldest where all are."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_of(x: Value) -> onnx.TypeProto:
    made = onnx.TypeProto()
    if isinstance(x, Node | Narrow):
        tensor = x.node if isinstance(x, Narrow) else x
        element = x.element if isinstance(x, Narrow) else ELEMENT_OF[x.dtype]
        shape = [str(d) if isinstance(d, Int) else d for d in tensor.shape]
        made.CopyFrom(helper.make_tensor_type_proto(element, shape))
    return made
