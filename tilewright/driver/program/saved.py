"""Programs to files and back, without torch: `tw.save` of a program, `tw.load`."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir.node import Graph, Input
from tilewright.ir.positions import contiguous_strides
from tilewright.ir.slots import Buffer, Same
from tilewright.ir.types import TensorType
from tilewright.runtime.arrays import contiguous, in_layout, read, view
from tilewright.runtime.loaded import LoadedProgram
from tilewright.runtime.program import Program
from tilewright.runtime.program_data import ProgramData, Stored
from tilewright.runtime.program_file import SavedProgram, read_program, write_program
from tilewright.runtime.shared import Piece, Weight, derive
from tilewright.runtime.signature import (
    ArrayArgument,
    Held,
    Items,
    Leaf,
    Parameter,
    Signature,
)
from tilewright.targets import require_runnable

BESIDE = ("inside", "beside")


def load(path: str | Path) -> LoadedProgram:
    """The program of a file that `save` wrote, as a function of arrays.

    The file holds native code, which runs in this process: load only what you trust.
    """
    path = Path(path)
    found = read_program(path)
    target = found.program.target
    try:
        require_runnable(target)
    except Invalid as problem:
        raise Invalid(
            f"{path} is for another machine: {problem.what}",
            hint="save it on a machine like this one, or with TILEWRIGHT_TARGET set to a target "
            "that both have",
        ) from None
    return LoadedProgram(found.name, found.program, found.signature)


def write(saved: SavedProgram, path: str | Path, weights: str) -> None:
    """Writes the file of a program; `weights` says where its arrays go."""
    path = Path(path)
    if weights not in BESIDE:
        raise Invalid(f"weights={weights!r}", hint=f"one of {', '.join(map(repr, BESIDE))}")
    beside = f"{path.name}.weights" if weights == "beside" else None
    write_program(saved, path, own_version(), beside)


def own_version() -> str:
    """The version that is installed."""
    try:
        return version("tilewright")
    except PackageNotFoundError:  # run from a checkout
        return "unknown"


def saved_program(program: Program, values: Mapping[str, Any] | None = None) -> SavedProgram:
    """A program of `tw.compile_graph`. `values` are arrays for some of its inputs, by name, which
    then belong to it: every call has the others as arguments.
    """
    graph = program.details.graph
    if graph is None:
        raise Invalid("the prologue of a program is saved with it", hint="save the program itself")
    if program.details.marks is not None:
        raise Invalid(f"{graph.name} was compiled for profiling", hint="compile it without profile")
    labels = [_label(n) for n in graph.inputs]
    given = dict(values or {})
    unknown = [name for name in given if name not in labels]
    if unknown:
        raise Invalid(f"{graph.name} has no input {unknown[0]!r}", hint=", ".join(labels))
    arrays: dict[str, Stored] = {}
    for name, x in given.items():
        arrays[name] = stored(x, name, program.inputs[labels.index(name)])
    data, inputs = _bound(program, labels, arrays)
    return SavedProgram(graph.name, data, _signature(graph, data, inputs, arrays))


def _label(n: Any) -> str:
    assert isinstance(n.op, Input), "inputs of a graph are such nodes"
    return n.op.label


def stored(x: Any, name: str, wanted: TensorType) -> Stored:
    """An array as the program reads it."""
    m = read(x, name)
    if m.dtype is not wanted.dtype or m.shape != wanted.shape or m.paired:
        given = f"{m.dtype}[{','.join(map(str, m.shape))}]"
        raise Invalid(f"{name} is {given}, and {wanted!r} is needed")
    plain = in_layout(m, contiguous(m.shape))
    return Stored(m.dtype, view(plain).copy())


def _bound(
    program: Program, labels: Sequence[str], arrays: Mapping[str, Stored]
) -> tuple[ProgramData, tuple[str | None, ...]]:
    """The program with these arrays in it, and the slots of its inputs."""
    data = program.data
    if data.prologue is None:
        return data, tuple(labels)
    own = [labels[k] for k in data.weights]
    missing = [name for name in own if name not in arrays]
    if not any(name in arrays for name in own):
        return data, tuple(labels)
    if missing:
        raise Invalid(
            f"{own[0]} and {missing[0]} are folded together: either all of "
            f"{', '.join(own)} are given when the program is saved, or none",
        )
    return with_weights(program, [arrays[name].array.ctypes.data for name in own]), tuple(
        None if k in data.weights and k not in data.kept else name for k, name in enumerate(labels)
    )


def with_weights(
    program: Program, addresses: Sequence[int], weights: Sequence[Weight] | None = None
) -> ProgramData:
    """The program with what its prologue makes of weights as constants, and no prologue."""
    if program.prologue is None:
        return program.data
    return with_derived(program.data, program.prologue, addresses, weights)


def with_derived(
    data: ProgramData,
    prologue: Program,
    addresses: Sequence[int],
    weights: Sequence[Weight] | None = None,
) -> ProgramData:
    """A program for any machine with what its prologue, which runs on this one, makes of weights
    as constants."""
    found = derive(data.recipes, prologue, addresses, weights)
    constants = (*data.constants, *map(_constant, found.pieces))
    return replace(data, constants=constants, prologue=None, recipes=(), weights=())


def _constant(p: Piece) -> Stored:
    """A copy: the piece may be dropped, or shared with other programs."""
    first = p.address - p.memory.ctypes.data
    raw = p.memory[first : first + p.size].copy()
    shape = [int(n) for n in p.type.shape if isinstance(n, int)]
    return Stored(p.type.dtype, raw.view(p.type.dtype.memory).reshape(shape))


def _signature(
    graph: Graph,
    data: ProgramData,
    inputs: tuple[str | None, ...],
    arrays: Mapping[str, Stored],
) -> Signature:
    given = [n for n in graph.inputs if _label(n) not in arrays]
    labels = [_label(n) for n in given]
    plain = all(x.isidentifier() and not keyword.iskeyword(x) for x in labels)
    how = "POSITIONAL_OR_KEYWORD" if plain else "POSITIONAL_ONLY"
    names = labels if plain else [f"input{k}" for k in range(len(given))]
    arguments = tuple(
        ArrayArgument(name, _label(n), n.dtype, n.shape, contiguous_strides(n.shape))
        for name, n in zip(names, given, strict=True)
    )
    outs = tuple(
        Buffer(f"result {k}", t.dtype, t.shape, contiguous_strides(t.shape))
        for k, t in enumerate(data.outputs)
    )
    leaves = tuple(Leaf(k) for k in range(len(outs)))
    read_by_calls = {x for x in inputs if x is not None}
    return Signature(
        tuple(Parameter(name, how, Leaf(k)) for k, name in enumerate(names)),
        arguments,
        inputs,
        outs,
        tuple(Same(b.slot) for b in outs),
        leaves[0] if len(leaves) == 1 else Items(leaves),
        tuple(Held(name, x) for name, x in arrays.items() if name in read_by_calls),
    )
