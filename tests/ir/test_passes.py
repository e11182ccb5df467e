"""Passes: their text round-trips, checks run between them, stages are files that read back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilewright import ops as _ops
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.graph.decompose import Decompose
from tilewright.graph.simplify import Simplify
from tilewright.ir.check import CheckFailed
from tilewright.ir.node import Graph, Node, input
from tilewright.ir.passes import PASSES, Pass, parse_passes, passes_text, run
from tilewright.ir.text import parse_graph
from tilewright.ir.types import TensorType, f32

ops: Any = _ops
A = input("a", TensorType(f32, (4, 3)))


def test_text_round_trips() -> None:
    passes = (Simplify(rounds=3), Decompose(keep=("softmax", "attention")), Simplify())
    text = passes_text(passes)
    assert text == 'Simplify{rounds=3}, Decompose{keep=("softmax", "attention")}, Simplify'
    assert parse_passes(text) == passes
    assert parse_passes("") == ()


def test_every_pass_has_text() -> None:
    for cls in PASSES.values():
        if cls.__module__.startswith("tilewright."):
            assert parse_passes(str(cls())) == (cls(),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Simplfy", "did you mean Simplify"),
        ("Simplify{turns=3}", "no option turns; it has rounds"),
        ("Simplify{rounds=}", "expected a dim"),
        ("Simplify Decompose", "expected the end"),
    ],
)
def test_bad_text_gets_a_sentence(text: str, says: str) -> None:
    with pytest.raises(Invalid, match="passes, line 1, column") as caught:
        parse_passes(text)
    assert says in str(caught.value)


def example() -> Graph:
    return Graph("g", (A,), (ops.neg(ops.neg(ops.softmax(A, 1))),))


def test_stages_are_written_and_read_back(tmp_path: Path) -> None:
    done = run((Simplify(), Decompose()), example(), Log(), check=True, dump=tmp_path / "new")
    names = sorted(p.name for p in (tmp_path / "new").iterdir())
    assert names == ["00-input.tw", "01-Simplify.tw", "02-Decompose.tw"]
    stages = [parse_graph((tmp_path / "new" / n).read_text()) for n in names]
    assert stages[0] == example() and stages[-1] == done
    # An edited stage is put back in.
    text = (tmp_path / "new" / names[1]).read_text().replace("axis=1", "axis=0")
    assert run((Decompose(),), parse_graph(text), Log()) != done


def test_switches_are_the_default(tmp_path: Path) -> None:
    with knobs.dump.override(tmp_path):
        run((Simplify(),), example(), Log(), prefix="main-")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00-main-input.tw", "01-main-Simplify.tw"]


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="cannot be written"):
        run((), example(), Log(), dump=tmp_path / "file")


def test_a_broken_pass_is_caught_by_name() -> None:
    @dataclass(frozen=True)
    class Breaks(Pass):
        def apply(self, program: Graph, log: Log) -> Graph:
            n = program.outputs[0]
            wrong = Node(n.op, n.inputs, TensorType(f32, (1,)))
            return program.with_outputs((ops.expand(wrong, (4, 3)),))

    try:
        with pytest.raises(CheckFailed, match="types-agree failed after Breaks"):
            run((Breaks(),), example(), Log(), check=False)  # a pass that is not ours is checked
    finally:
        del PASSES["Breaks"]
