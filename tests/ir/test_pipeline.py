"""Pipelines: lists of passes that are checked when they are made, edited as values, and printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

import tilewright as tw
from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import CPU, FIXED, GPU, described
from tilewright.graph.decompose import Decompose
from tilewright.graph.empty import EmptyValues
from tilewright.graph.pack import PackOperands
from tilewright.graph.simplify import Simplify
from tilewright.ir.node import Graph, Node, input, rebuild
from tilewright.ir.passes import PASSES, Pass, PassRun
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.types import TensorType, f32
from tilewright.targets import default, get

A = input("a", TensorType(f32, (4, 3)))


@pytest.fixture(autouse=True)
def forget_own_passes() -> Iterator[None]:
    known = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(known)


@pytest.mark.parametrize("listed", [CPU, GPU, tw.passes(precision="strict")], ids=len)
def test_text_is_lossless(listed: Pipeline) -> None:
    assert Pipeline.parse(str(listed)) == listed
    lines = str(listed).replace(", ", ",\n")
    assert Pipeline.parse(f"# with a comment\n{lines}") == listed


def test_options_are_part_of_the_text_and_the_machine_is_not() -> None:
    edited = CPU.replacing("PackOperands", PackOperands(min_rows=3))
    last = "DotProducts, PackOperands{min_rows=3}, HoistFromLoops{products=False}"
    assert str(edited).endswith(last)
    wide = PackOperands(min_rows=3).on(get("x86-64-v4"))
    assert wide.target.vector_bits == 512 and str(wide) == "PackOperands{min_rows=3}"
    with pytest.raises(Invalid, match="no option target; it has min_rows"):
        Pipeline.parse('PackOperands{target="x86-64-v4"}')


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Simplify, EmptyValues", "Decompose is missing: fusion takes"),
        ("Decompose", "EmptyValues is missing"),
        ("EmptyValues, Decompose", "EmptyValues works only after Decompose"),
        ("Decompose, EmptyValues, Winograd", "Winograd needs ChannelsLast before it, and the"),
        ("ChannelsLast, Decompose, EmptyValues", "move Decompose before ChannelsLast"),
        ("Decompose, BatchNormFold, EmptyValues", "BatchNormFold works only before Decompose"),
        ("Decompose, EmptyValues, PackOperands, Simplify", "PackOperands works only after Simp"),
        ("Decompose, EmptyValues, LongConcats, LongConcats", "LongConcats is listed 2 times"),
        ("Decompse, EmptyValues", "there is no pass Decompse; did you mean Decompose?"),
        ("Decompose, EmptyValues, Zzz", "there is no pass Zzz; there are "),
        ("Decompose EmptyValues", "expected the end"),
        ('Simplify{rounds="two"}, Decompose, EmptyValues', "rounds of Simplify is no int"),
        ('Simplify{changes="all"}, Decompose, EmptyValues', "changes of Simplify is one of"),
    ],
)
def test_lists_that_cannot_work_are_refused(text: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        Pipeline.parse(text)
    assert says in str(caught.value)


def test_edits_give_another_list() -> None:
    assert [p.name for p in CPU.without("Winograd", "KeyBlocks")] == [
        p.name for p in CPU if p.name not in ("Winograd", "KeyBlocks")
    ]
    first = CPU.before("Simplify", EmptyValues())
    assert next(iter(first)) == EmptyValues()
    last = CPU.after("Simplify", Simplify(rounds=1))
    assert "EmptyValues, Simplify, Simplify{rounds=1}, JoinSums" in str(last)
    assert Pipeline((*CPU, EmptyValues())) != CPU
    with pytest.raises(Invalid, match="PixelGradients needs ChannelsLast"):
        CPU.without("ChannelsLast")
    with pytest.raises(Invalid, match="the list has no pass OnlineSoftmax"):
        CPU.without("OnlineSoftmax")
    with pytest.raises(Invalid, match="did you mean Winograd"):
        CPU.before("Winogrd", Simplify())
    wrong: Any = ("Simplify",)
    with pytest.raises(Invalid, match="'Simplify' is no pass"):
        Pipeline(wrong)


def test_strict_lists_have_nothing_that_rounds() -> None:
    assert CPU.rounding and not tw.passes(precision="strict").rounding
    assert Pipeline.parse('Simplify{changes="rounding"}, Decompose, EmptyValues').rounding


def test_the_default_list_is_that_of_the_target() -> None:
    assert tw.passes() == CPU and tw.passes("cuda:90") == GPU
    text = described(CPU)
    for p in CPU:
        assert p.about() and f"\n{p.name}" in f"\n{text}"
    assert all(name in text for name in FIXED)


def graph() -> Graph:
    return Graph("g", (A,), (ops.softmax(ops.neg(ops.neg(A)), 1),))


def test_what_each_pass_did() -> None:
    runs: list[PassRun] = []
    out = CPU.run(graph(), default(), Log(), runs=runs)
    assert [r.text for r in runs] == [str(p) for p in CPU]
    assert runs[0].before == 4 and runs[0].after == 2 and runs[0].changed == 1
    assert all(a.after == b.before for a, b in pairwise(runs))
    assert runs[-1].after == len(out.nodes())


def test_a_pass_of_ones_own_stands_anywhere() -> None:
    @dataclass(frozen=True)
    class Doubled(Pass, before=("Decompose",)):
        """Negations become doublings. Only for tests."""

        by: float = 2.0

        def apply(self, program: Graph, log: Log) -> Graph:
            def change(n: Node) -> Node:
                return ops.mul(n.inputs[0], self.by) if n.op.name == "neg" else n

            return rebuild(program, change)

    assert Doubled(by=3.0).about() == "Negations become doublings."
    edited = CPU.before("BatchNormFold", Doubled(by=3.0))
    assert Pipeline.parse(str(edited)) == edited and "Doubled{by=3.0}" in str(edited)
    assert edited.key() is None and CPU.key() is not None
    with pytest.raises(Invalid, match="Doubled works only before Decompose"):
        CPU.after("Decompose", Doubled())


def test_the_version_of_a_pass_is_part_of_the_key() -> None:
    @dataclass(frozen=True)
    class Versioned(Pass, version="7"):
        def apply(self, program: Graph, log: Log) -> Graph:
            return program

    key = CPU.before("Decompose", Versioned()).key()
    assert key is not None and key.endswith("Versioned 7")


def test_what_a_pass_of_ones_own_gives_is_checked() -> None:
    @dataclass(frozen=True)
    class Nothing(Pass):
        def apply(self, program: Graph, log: Log) -> Any:
            return None

    @dataclass(frozen=True)
    class Fewer(Pass):
        def apply(self, program: Graph, log: Log) -> Graph:
            return Graph(program.name, program.inputs, (program.inputs[0], program.inputs[0]))

    @dataclass(frozen=True)
    class Softmaxes(Pass, after=("Decompose",)):
        def apply(self, program: Graph, log: Log) -> Graph:
            return program.with_outputs(ops.softmax(o, 1) for o in program.outputs)

    for made, says in ((Nothing(), "gives a NoneType"), (Fewer(), "number or the types")):
        with pytest.raises(Invalid, match=says) as caught:
            CPU.before("Decompose", made).run(graph(), default(), Log())
        assert "test_pipeline.py:" in str(caught.value)
    with pytest.raises(Invalid, match="after Softmaxes the graph has softmax"):
        CPU.after("EmptyValues", Softmaxes()).run(graph(), default(), Log())


def test_what_decompose_keeps_is_refused_with_a_sentence() -> None:
    with pytest.raises(Invalid, match="after Decompose the graph has softmax"):
        kept = CPU.replacing("Decompose", Decompose(keep=("softmax",)))
        kept.run(graph(), default(), Log())
