"""Models as commands name them, and their inputs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import Invalid
from tilewright.driver.cli.models import graph_models, load
from tilewright.driver.cli.models.inputs import parse_inputs
from tilewright.driver.cli.models.model import How, Result
from tilewright.driver.cli.problems import UserError, told
from tilewright.ir.text import parse_graph

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

FILE = """
import torch

def sums(x, y, scale=2.0):
    return x * scale + y

def network():
    return torch.nn.Linear(4, 2), {"input": torch.ones(3, 4)}

def alone():
    return torch.nn.Linear(4, 2)

def nothing():
    return torch.ones(3)

sums_inputs = torch.ones(2), torch.ones(2)
inputs = torch.zeros(1, 4)

def broken():
    return missing_name
"""
GRAPH = """
graph main(x: f32[m,8], w: weight f32[8]) where m: 1..64 {
  %0: f32[m,8] = mul(x, w)
  return %0
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    (made / "plainly.py").write_text(FILE)
    (made / "main.tw").write_text(GRAPH)
    tw.save(tw.compile_graph(parse_graph(GRAPH)), made / "saved.bin")
    layer = torch.nn.Linear(4, 2)
    torch.export.save(torch.export.export(layer, (torch.ones(3, 4),)), made / "layer.pt2")
    helper = onnx.helper
    f32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", f32, ["rows", 4])],
        [helper.make_tensor_value_info("y", f32, ["rows", 2])],
        [helper.make_tensor("w", f32, [4, 2], np.arange(8, dtype=np.float32))],
    )
    made_by = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    made_by.ir_version = 10
    onnx.save(made_by, made / "product.onnx")
    return made


def results(text: str, *inputs: str, check: bool | None = None) -> list[Result]:
    return load(text).results(How(inputs), lambda text: nullcontext(), check)


@pytest.mark.parametrize(
    ("text", "inputs", "shape"),
    [
        ("plainly.py:sums", (), (2,)),
        ("plainly.py:sums", ("f32[5]", "y=f32[5]"), (5,)),
        ("plainly.py:sums", ("y=bf16[7]", "x=bf16[7]"), (7,)),
        ("plainly.py:network", (), (3, 2)),
        ("plainly.py:alone", (), (1, 2)),
        ("plainly.py:nothing", (), (3,)),
        ("plainly:network", ("input=@{x}",), (5, 2)),
        ("layer.pt2", (), (3, 2)),
        ("layer.pt2", ("input=f32[3,4]",), (3, 2)),
        ("product.onnx", ("f32[6,4]",), (6, 2)),
        ("product.onnx", ("x=@{x}",), (5, 2)),
        ("main.tw", ("w=f32[8]", "x=f32[6,8]"), (6, 8)),
        ("saved.bin", ("x=f32[6,8]", "w=f32[8]"), (6, 8)),
    ],
)
def test_every_way_to_name_a_model(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    inputs: tuple[str, ...],
    shape: tuple[int, ...],
) -> None:
    """They run, and results are right."""
    np.save(tmp_path / "x.npy", np.ones((5, 4), np.float32))
    monkeypatch.chdir(folder)
    (found,) = results(text, *(i.replace("{x}", str(tmp_path / "x.npy")) for i in inputs))
    assert found.array.shape == shape
    assert found.problem is None
    assert (found.error is None) == (text == "saved.bin"), "all else is checked"


def test_what_is_told_of_every_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explanation, and stages that agree."""
    monkeypatch.chdir(folder)
    for text, given in (
        ("plainly.py:network", ()),
        ("product.onnx", ("f32[6,4]",)),
        ("main.tw", ()),
    ):
        model, how = load(text), How(given)
        assert model.explained(how).kernels, text
        reports = model.stages(how, only_if_wrong=False)
        assert any(r.rows for r in reports) and not any(r.fault for r in reports), text
    with pytest.raises(Invalid, match="was compiled before, and can only be run"):
        load("saved.bin").explained(How())


@pytest.mark.parametrize(
    ("text", "inputs", "says"),
    [
        ("plainly.py:sums", ("f32[5]", "x=f32[5]"), "multiple values for argument 'x'"),
        ("plainly.py:sums", ("f32[5]", "z=f32[5]"), "its inputs are x, y, scale"),
        ("plainly.py:sums", ("x=f32[5]", "x=f32[5]"), "'x' is given twice"),
        ("plainly.py:sums", ("x=@plainly.py",), "plainly.py is no array of numpy's"),
        ("missing.module:f", (), "there is no module missing"),
        ("my-model:f", (), "neither a file that ends in .py nor the name of a module"),
        ("none.onnx", (), "there is no file none.onnx"),
        ("broken.pt2", (), "cannot be read as an exported program"),
        ("product.onnx", (), "has the shape [rows,4]\n  hint: say its sizes"),
        ("product.onnx", ("z=f32[5,4]",), "no input 'z'"),
        ("product.onnx", ("f32[5,4]", "f32[5,4]"), "has 1 inputs, and 2 were given"),
        ("saved.bin", (), "'x' of saved has symbolic dims"),
        ("main.tw", (), "main needs inputs"),
        ("main.tw", ("f32[6,8]",), "the input 'w' is missing"),
        ("main.tw", ("f32[6,8]", "f32[9]"), "the input 'w': expected"),
    ],
)
def test_mistakes_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, inputs: tuple[str, ...], says: str
) -> None:
    (folder / "broken.pt2").write_bytes(b"no archive")
    monkeypatch.chdir(folder)
    with pytest.raises(Invalid) as problem:
        results(text, *inputs)
    assert says in str(problem.value)


def test_what_would_take_long_is_not_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is asked for."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(graph_models, "MOST_WORK", 10)
    given = ("product.onnx", "f32[6,4]")
    (found,) = results(*given)
    assert found.error is None and "--check" in (found.unchecked or "")
    (found,) = results(*given, check=True)
    assert found.error is not None


def test_errors_of_users_code_show_its_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(UserError) as problem:
        load("plainly.py:broken")
    lines = told(problem.value).splitlines()
    assert lines[0] == "plainly.py raised NameError: name 'missing_name' is not defined"
    assert lines[1:] == ["  plainly.py:20 in broken", "    return missing_name"]


def test_random_inputs_are_the_same_each_time() -> None:
    def drawn() -> Any:
        given = parse_inputs(["f32[3,4]", "ids=i64[5]", "on=bool[2]"])
        return [*given.listed, *given.named.values()]

    first, again = drawn(), drawn()
    assert [v.array.dtype.name for v in first] == ["float32", "int64", "bool"]
    assert all((a.array == b.array).all() for a, b in zip(first, again, strict=True))
