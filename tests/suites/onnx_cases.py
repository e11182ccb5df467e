"""Cases of ONNX's backend suite: what the wheel brings, and the judgement of one through native
code."""

from __future__ import annotations

import faulthandler
import os
import pickle
import warnings
from functools import cache
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from typing import Any

import numpy as np

from tests.suites.opinfo_runs import Outcome, Settings

ROUNDINGS = 4
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
DOWNLOADS = "real"  # models that the suite fetches from the net

STATUSES = {
    "right": "right",
    "specialised": "right, for one value of an input that decides a shape or a setting",
    "constant": "right, and no output depends on an input",
    "drawn": "numbers are drawn: shape and dtype are right",
    "rounding": "beyond the case's tolerance by roundings of its dtype only",
    "refused": "refused with a reason",
    "wrong": "wrong",
    "error": "raised something else than a refusal",
    "crash": "the process died",
    "timeout": "took too long",
}
GOOD = ("right", "specialised", "constant")


Parts = tuple[bytes, list[tuple[list[Any], list[Any]]], float, float]


@cache
def cases() -> dict[str, Any]:
    """Every case that needs no download, by name, in the suite's order. Making the numbers of all
    takes ten seconds."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from making the numbers
        return {c.name: c for kind in KINDS for c in load_model_tests(kind=kind)}


def cases_of(*files: str) -> dict[str, Any]:
    """The cases that some files of the suite make, without the others."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in files:
            import_module(f"{node.__name__}.{name}")
    wanted = {c.name: c for c in node._NodeTestCases}
    return dict(sorted(wanted.items()))


def written(folder: Path) -> dict[str, Path]:
    """All cases as files, one each, so that a process that judges one reads no other."""
    out = {}
    for name, case in cases().items():
        out[name] = folder / f"{name}.pickle"
        if not out[name].exists():
            out[name].write_bytes(pickle.dumps(parts_of(case)))
    return out


def downloads() -> list[str]:
    from onnx.backend.test.loader import load_model_tests

    return [c.name for c in load_model_tests(kind=DOWNLOADS)]


def parts_of(case: Any) -> Parts:
    """The model, its sets of inputs and outputs, and the tolerances."""
    if case.model is not None:
        made = [([_value(x) for x in a], [_value(y) for y in b]) for a, b in case.data_sets]
        return case.model.SerializeToString(), made, case.rtol, case.atol
    folder = Path(case.model_dir)
    sets = []
    for data in sorted(folder.glob("test_data_set*")):
        sets.append((_read(data, "input", folder), _read(data, "output", folder)))
    return (folder / "model.onnx").read_bytes(), sets, case.rtol, case.atol


def _value(x: Any) -> Any:
    import onnx

    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def _read(data: Path, what: str, folder: Path) -> list[Any]:
    import onnx
    from onnx import numpy_helper

    model = onnx.load(folder / "model.onnx", load_external_data=False)
    kinds = [v.type for v in (model.graph.input if what == "input" else model.graph.output)]
    out: list[Any] = []
    for k in range(len(list(data.glob(f"{what}_*.pb")))):
        text = (data / f"{what}_{k}.pb").read_bytes()
        kind = kinds[k].WhichOneof("value") if k < len(kinds) else "tensor_type"
        if kind == "sequence_type":
            sequence = onnx.SequenceProto()
            sequence.ParseFromString(text)
            out.append(numpy_helper.to_list(sequence))
        elif kind == "optional_type":
            optional = onnx.OptionalProto()
            optional.ParseFromString(text)
            out.append(numpy_helper.to_optional(optional))
        else:
            tensor = onnx.TensorProto()
            tensor.ParseFromString(text)
            out.append(numpy_helper.to_array(tensor))
    return out


def opset_of(case: Any) -> int:
    """ONNX's own opset of a case."""
    import onnx

    model = case.model or onnx.load(Path(case.model_dir) / "model.onnx", load_external_data=False)
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def judge_runtime(name: str, parts: Parts) -> Outcome:
    """The same case through ONNX Runtime, judged in the same way."""
    import onnxruntime

    model, sets, rtol, atol = parts
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for ins, wanted in sets:
            names = [a.name for a in session.get_inputs()]
            got = session.run(None, dict(zip(names, ins)))
            if differing := _difference(got, wanted, rtol, atol):
                near = not _difference(got, wanted, 0.0, 0.0, ROUNDINGS)
                return Outcome(name, "rounding" if near else "wrong", differing)
    except Exception as error:
        return Outcome(name, "refused", " ".join(str(error).split())[:120])
    return Outcome(name, "right")


def judge(name: str, parts: Parts) -> Outcome:
    """One case through native code, by its own tolerances."""
    from tilewright.base.errors import Unsupported
    from tilewright.driver.onnx.session import load

    model, sets, rtol, atol = parts
    status = "right"
    try:
        session = load(model)
        for ins, wanted in sets:
            names = [a.name for a in session.get_inputs()]
            got = session.run(None, dict(zip(names, ins)))
            if session.random:
                shapes = [[np.asarray(v).shape, np.asarray(v).dtype] for v in (*got, *wanted)]
                half = len(got)
                return Outcome(name, "drawn" if shapes[:half] == shapes[half:] else "wrong")
            differing = _difference(got, wanted, rtol, atol)
            if differing:
                near = not _difference(got, wanted, 0.0, 0.0, ROUNDINGS)
                return Outcome(name, "rounding" if near else "wrong", differing)
        if any(session.specialised):
            status = "specialised"
        if session.constant:
            status = "constant"
    except Unsupported as error:
        return Outcome(name, "refused", error.what)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        return Outcome(name, "error", f"{type(error).__name__}: {said}")
    return Outcome(name, status)


def _difference(got: Any, wanted: Any, rtol: float, atol: float, units: int = 0) -> str:
    """What differs, in words; empty where nothing does. `units` in the last place of the largest
    number are allowed besides."""
    if isinstance(wanted, list | tuple) or isinstance(got, list):
        if len(got) != len(wanted):
            return f"{len(got)} values for {len(wanted)}"
        return next(
            filter(None, (_difference(*p, rtol, atol, units) for p in zip(got, wanted))), ""
        )
    import ml_dtypes

    if got is None or wanted is None:
        return "" if got is wanted else "an optional with and without an element"
    x, y = np.asarray(got), np.asarray(wanted)
    if x.shape != y.shape or x.dtype != y.dtype:
        return f"{x.dtype}{list(x.shape)} for {y.dtype}{list(y.shape)}"
    if x.dtype.kind in "OUST":
        return "" if np.array_equal(x, y) else "other texts"
    try:
        wide = np.float64 if x.dtype.kind != "c" else x.dtype
        if units and x.dtype.kind not in "iub":
            largest = np.nan_to_num(np.abs(y.astype(wide)), posinf=0).max(initial=0)
            atol = atol + units * float(ml_dtypes.finfo(x.dtype).eps) * float(largest)
        np.testing.assert_allclose(x.astype(wide), y.astype(wide), rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    return ""


def work(folder: Path, pipe: connection.Connection, settings: Settings, noise: Path) -> None:
    """The life of a process that judges cases that were written to a folder, by name."""
    with open(noise, "w") as log:
        os.dup2(log.fileno(), 2)
    faulthandler.enable()
    by = judge_runtime if settings.backend == "onnxruntime" else judge
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        parts = pickle.loads((folder / f"{name}.pickle").read_bytes())
        pipe.send(by(name, parts))
