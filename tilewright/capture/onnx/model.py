"""Reading a model: from a path or bytes, with its external data, checked before anything is
translated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import checker, defs, external_data_helper, version_converter

from tilewright.base.errors import Invalid, TilewrightError

OLDEST = 7
OWN_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Model:
    """A model that was checked. `where` is what messages call it."""

    proto: onnx.ModelProto
    where: str

    @property
    def opset(self) -> int:
        return opsets(self.proto).get("", 1)

    def converted(self, opset: int | None = None) -> Model:
        """The same in another opset, by default the newest, by ONNX's converter."""
        try:
            made = version_converter.convert_version(self.proto, opset or defs.onnx_opset_version())
        except Exception as error:  # the converter raises what its C++ parts throw
            raise Invalid(
                f"ONNX cannot convert this model from opset {self.opset}: {_first_line(error)}",
                where=self.where,
            ) from error
        return Model(made, self.where)


def opsets(proto: onnx.ModelProto | onnx.FunctionProto) -> dict[str, int]:
    """Versions by domain; ONNX's own is the empty one."""
    return {"" if o.domain in OWN_DOMAINS else o.domain: o.version for o in proto.opset_import}


def read(source: str | Path | bytes) -> Model:
    """The model of a file or of its bytes; `Invalid` says what is wrong with it."""
    if isinstance(source, bytes):
        where, folder, data = f"a model of {len(source)} bytes", None, source
    else:
        path = Path(source)
        where, folder = str(path), path.resolve().parent
        try:
            data = path.read_bytes()
        except OSError as error:
            raise Invalid(f"cannot read the model: {error.strerror}", where=where) from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise Invalid(
            "this is not an ONNX model: its bytes are not a protocol buffer of one",
            where=where,
            hint="was the file downloaded whole?",
        ) from None
    return checked(proto, where, folder)


def checked(proto: onnx.ModelProto, where: str, folder: Path | None = None) -> Model:
    """The model with its external data read in, after all checks."""
    if not proto.HasField("graph") or not proto.opset_import:
        raise Invalid("this is not an ONNX model: it has no graph or no opset", where=where)
    newest, version = defs.onnx_opset_version(), opsets(proto).get("", OLDEST)
    if not 1 <= version <= newest:
        raise Invalid(
            f"the model is of opset {version}; this version of onnx knows 1 to {newest}",
            where=where,
            hint="install a newer onnx",
        )
    _sorted(proto.graph, where)
    _read_external(proto, where, folder)
    try:
        checker.check_model(proto)
    except checker.ValidationError as error:
        raise Invalid(f"the model is malformed: {_first_line(error)}", where=where) from None
    except TilewrightError:
        raise
    except Exception as error:  # e.g. a string that is not UTF-8, from C++ parts
        raise Invalid(f"the model is malformed: {_first_line(error)}", where=where) from None
    model = Model(proto, where)
    # Before opset 7 a node said whether and along which axis an operand is broadcast.
    told = any(a.name == "broadcast" for n in proto.graph.node for a in n.attribute)
    return model.converted(OLDEST) if version < OLDEST and told else model


def _sorted(graph: onnx.GraphProto, where: str) -> None:
    """Nodes come after what they read: otherwise the graph has a cycle, or is in disorder."""
    for n in graph.node:
        names = (n.name, n.op_type, n.domain, *n.input, *n.output, *(a.name for a in n.attribute))
        if not all(isinstance(name, str) for name in names):
            raise Invalid("the model is malformed: a name is not UTF-8", where=where)
    made = {name: n for n in graph.node for name in n.output if name}
    known = {v.name for v in (*graph.input, *graph.initializer)}
    known |= {t.values.name for t in graph.sparse_initializer}
    for n in graph.node:
        for name in n.input:
            if name and name not in known and name in made:
                raise Invalid(
                    f"node {label(n)} reads {name!r}, which node {label(made[name])} makes only "
                    "after it: the graph has a cycle or is not sorted",
                    where=where,
                )
        known |= set(n.output)


def label(n: onnx.NodeProto) -> str:
    """How messages name a node: its name, or what it makes."""
    shown = n.name or "-> " + ", ".join(map(str, n.output))
    return f"{n.op_type} ({shown})"


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Tensors in a graph with where they are, those in bodies of operators too."""
    for t in graph.initializer:
        yield f"initializer {t.name!r}", t
    for n in graph.node:
        for a in n.attribute:
            for t in (a.t, *a.tensors):
                yield f"node {label(n)}", t
            for g in (a.g, *a.graphs):
                yield from _tensors(g)


def _read_external(proto: onnx.ModelProto, where: str, folder: Path | None) -> None:
    for owner, t in _tensors(proto.graph):
        if not external_data_helper.uses_external_data(t):
            continue
        location = external_data_helper.ExternalDataInfo(t).location
        if folder is None:
            raise Invalid(
                f"{owner} keeps its data in the file {location!r}, and bytes have no folder",
                where=where,
                hint="load the model by its path",
            )
        path = (folder / location).resolve()
        if not location or not path.is_relative_to(folder):
            raise Invalid(
                f"{owner} keeps its data in {location!r}, outside of the model's folder",
                where=where,
                hint="a model reads files beside it only",
            )
        if not path.is_file():
            raise Invalid(
                f"{owner} keeps its data in {location!r}, and there is no such file", where=where
            )
        try:
            external_data_helper.load_external_data_for_tensor(t, str(folder))
        except Exception as error:
            raise Invalid(
                f"{owner}: {location!r} does not hold its data: {_first_line(error)}", where=where
            ) from None
        t.data_location = onnx.TensorProto.DEFAULT
        del t.external_data[:]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
