"""ONNX models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.base.errors import Invalid, Unsupported
from tilewright.capture.onnx.elements import dtype_for, numpy_of
from tilewright.driver.cli.models.dims import OpenDim
from tilewright.driver.cli.models.graph_models import Interpreted
from tilewright.driver.cli.models.model import How, Model, Result, Step
from tilewright.driver.export.api import Exported, export
from tilewright.driver.looking.explain import Explanation, explain
from tilewright.driver.looking.validate import bisect_graph, validate_graph
from tilewright.driver.onnx.session import Argument, Session
from tilewright.driver.onnx.session import load as load_session
from tilewright.driver.program.arrays import random_array
from tilewright.driver.program.validation import Report
from tilewright.ir.types import TensorType


def load(path: Path) -> OnnxModel:
    return OnnxModel(path)


class OnnxModel(Model):
    def __init__(self, path: Path) -> None:
        self.name, self.path = path.stem, path

    def session(self, how: How, **options: Any) -> Session:
        return load_session(self.path, options=how.options(**options))

    def compiled(self, how: How, **options: Any) -> Session:
        """With a program: for all inputs, or for those that are given."""
        session = self.session(how, **options)
        if not session.programs or how.inputs:
            session.run(None, self.feeds(session, how))
        return session

    def explained(self, how: How, **options: Any) -> Explanation:
        return explain(self.compiled(how, **options))

    def results(self, how: How, step: Step, check: bool | None = None) -> list[Result]:
        with step(f"compiling {self.name}"):
            session = self.session(how)
            feeds = self.feeds(session, how)
            found = session.run(None, feeds)
        names = [x.name for x in session.get_outputs()]
        if not all(isinstance(a, np.ndarray) for a in found):
            raise Unsupported(
                f"{self.name} has results that are no tensors",
                hint="call it in Python: tw.onnx.load",
            )
        types, arrays = [str(a.dtype) for a in found], [_wide(a) for a in found]
        whole = session.definition(feeds)
        if whole is None:
            why = "it has results whose sizes only data decides, and the interpreter runs one graph"
            return [Result(*x, unchecked=why) for x in zip(names, types, arrays, strict=True)]
        return Interpreted(*whole, step, check).results(names, types, arrays)

    def exported(self, how: How, path: Path, dims: Sequence[OpenDim], **options: Any) -> Exported:
        values = {name: x.array for name, x in how.inputs.named.items()}
        if how.inputs.listed:
            raise Invalid(
                "--input gives values that are always the same, by name",
                hint="--input 'sizes=@sizes.npy', or leave it out",
            )
        for d in dims:
            if d.input:
                raise Invalid(
                    f"--dim: {self.name} names its dims itself", hint=f"{d.name}=1..64, {d.name}=8"
                )
        most = (1 << 31) - 1
        dynamic = {d.name: d.low if d.low == d.high else (d.low, d.high or most) for d in dims}
        options["name"] = options.get("name") or self.name
        return export(self.path, path=path, dynamic=dynamic, values=values or None, **options)

    def stages(self, how: How, only_if_wrong: bool) -> list[Report]:
        judged = bisect_graph if only_if_wrong else validate_graph
        graphs = [p.details.graph for p in self.compiled(how).programs]
        return [judged(g, how.options()) for g in graphs if g is not None]

    def feeds(self, session: Session, how: How) -> dict[str, Any]:
        """Inputs by name: those that were given, and random ones of the types that are declared."""
        rng, feeds = np.random.default_rng(0), dict[str, Any]()
        declared = session.get_inputs()
        given = how.inputs.placed([x.name for x in declared], self.name)
        for x in declared:
            feeds[x.name] = given[x.name].array if x.name in given else self._random(x, rng)
            if x.name in given and given[x.name].dtype == "bf16":
                feeds[x.name] = feeds[x.name].astype(numpy_of(onnx.TensorProto.BFLOAT16))
        return feeds

    def _random(self, x: Argument, rng: np.random.Generator) -> np.ndarray:
        if not x.type.startswith("tensor("):
            raise Invalid(
                f"the input {x.name!r} of {self.name} is a {x.type}, which no option gives",
                hint="call the model in Python: tw.onnx.load",
            )
        sizes = tuple(d for d in x.shape if isinstance(d, int))
        if len(sizes) < len(x.shape):
            shape = ",".join(map(str, x.shape))
            raise Invalid(
                f"the input {x.name!r} of {self.name} has the shape [{shape}]",
                hint=f"say its sizes: --input '{x.name}=f32[8,16]'",
            )
        element = onnx.TensorProto.DataType.Value(x.type[len("tensor(") : -1].upper())
        made = random_array(TensorType(dtype_for(element), sizes), rng)
        return made.astype(numpy_of(element))


def _wide(array: np.ndarray) -> np.ndarray:
    """What numpy itself lacks, such as bfloat16, as float32."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array
