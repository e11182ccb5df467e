"""The programs of a model, which a call runs one after the other, and where their values lie. There
is one, unless data decides sizes: those are counted before the program that has them as symbols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

from tilewright.driver.export.model import Model
from tilewright.graph.divide import Cut, divide
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.extremes import greatest
from tilewright.ir.node import Graph, Input, Node
from tilewright.ir.types import TensorType
from tilewright.runtime.program_data import ProgramData

LINE = 64  # bytes from one check's integer to the next, and of every alignment


@dataclass(frozen=True)
class Place:
    """Where a value lies: the caller's input or output of that number, or so many bytes into the
    weights or the workspace."""

    kind: str  # "input", "output", "weight" or "work"
    at: Dim


@dataclass(frozen=True)
class Step:
    """A program: what it reads (None: nothing does), where it puts its results, and the sizes that
    are known after it."""

    data: ProgramData
    operands: tuple[Place | None, ...]
    results: tuple[Place, ...]
    counted: tuple[Cut, ...]


@dataclass(frozen=True)
class Steps:
    """`counts` is where the workspace has the sizes that data decides; programs work behind `used`
    bytes of it."""

    steps: tuple[Step, ...]
    counts: tuple[Place, ...]
    used: Dim
    workspace: Dim


# The program of a graph, and where it finds weights: those of its inputs, by label, which it reads,
# then its constants.
Compile = Callable[[Graph], tuple[ProgramData, dict[str, int], list[int]]]


def steps_of(model: Model, compile: Compile) -> Steps:
    most = model.most
    outputs = model.graph.outputs
    own, watched = len(model.outputs), len(outputs) - len(model.outputs)
    counts = tuple(Place("work", (watched + k) * LINE) for k in range(len(model.counted)))
    used: Dim = (watched + len(counts)) * LINE
    inputs = {x.label: k for k, x in enumerate(model.inputs)}
    placed: dict[Node, Place] = {}
    arenas: list[Dim] = [0]
    steps = []
    parts = divide(model.graph, model.counted)
    for number, part in enumerate(parts):
        given: list[Node] = []
        results: list[Place] = []
        for n, made in zip(part.gives, part.graph.outputs, strict=True):
            places = [
                Place("output", k) if k < own else Place("work", (k - own) * LINE)
                for k, x in enumerate(outputs)
                if x is n
            ]
            places += [p for p, c in zip(counts, model.counted) if c.count is n]
            if not places:  # a later program reads it
                places = [Place("work", used)]
                used = used + D.ceildiv(greatest(_bytes(n), most), LINE) * LINE
            placed[n] = places[0]
            results += places
            given += [made] * len(places)
        graph = replace(part.graph.with_outputs(given), name=f"{model.graph.name}.{number}")
        data, weights, constants = compile(graph)
        operands: list[Place | None] = []
        for n in part.reads:
            if not isinstance(n.op, Input):
                operands.append(placed[n])
            elif n.op.label in inputs:
                operands.append(Place("input", inputs[n.op.label]))
            else:
                at = weights.get(n.op.label)
                operands.append(None if at is None else Place("weight", at))
        operands += [Place("weight", at) for at in constants]
        known = tuple(c for c in model.counted if c.count in part.gives)
        steps.append(Step(data, tuple(operands), tuple(results), known))
        arenas.append(greatest(data.arena, most))
    return Steps(tuple(steps), counts, used, used + reduce(D.maximum, arenas))


def _bytes(n: Node) -> Dim:
    assert isinstance(n.type, TensorType)
    return n.ttype.size * n.dtype.bytes
