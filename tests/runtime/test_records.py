"""Typed data as JSON and bytes: it comes back as it was, and nonsense is refused in words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.seeds import drawn
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.slots import Buffer, Check, Number, Place, Restrided, Same, Value, View
from tilewright.ir.types import DTYPES, TensorType, bf16, f32
from tilewright.runtime.program_data import KernelInfo, ProgramData, Recipe, Stored
from tilewright.runtime.program_file import SavedProgram
from tilewright.runtime.records import read_record, write_record
from tilewright.runtime.signature import (
    ArrayArgument,
    Constant,
    Fixed,
    Given,
    Held,
    Items,
    Leaf,
    Named,
    NumberArgument,
    Operation,
    Parameter,
    Scalar,
    Signature,
    Size,
    UnusedArgument,
)
from tilewright.targets import get as get_target
from tilewright.targets import names


class _Draw:
    """Programs that nobody compiled, with everything that a record may hold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        multiple = self.rng.choice([1, 2, 8])
        self.n = D.sym("n", self.rng.randrange(3), self.rng.choice([None, 512]), multiple)
        self.m = D.sym("m", 0, self.n)

    def dim(self) -> D.Dim:
        n, m = self.n, self.m
        long = sum(((n + k) // (k + 2) * m for k in range(20)), start=n)
        choices = [0, 1, 7, n, m, n * 3 + 1, n * m, D.minimum(n, 9) + D.mod(m, 4), n // 3, long]
        return self.rng.choice(choices)

    def dims(self) -> tuple[D.Dim, ...]:
        return tuple(self.dim() for _ in range(self.rng.randrange(4)))

    def stored(self) -> Stored:
        dtype = self.rng.choice([d for d in DTYPES.values() if d.format is None or d is bf16])
        shape = tuple(self.rng.randrange(4) for _ in range(self.rng.randrange(3)))
        data = self.rng.randbytes(int(np.prod(shape)) * dtype.bytes)
        return Stored(dtype, np.frombuffer(data, dtype.memory).reshape(shape))

    def program(self, deep: bool = True) -> ProgramData:
        some = range(self.rng.randrange(3))
        return ProgramData(
            tuple(TensorType(f32, self.dims()) for _ in some),
            tuple(TensorType(bf16, self.dims()) for _ in some),
            ("m", "n"),
            "entry",
            self.dim(),
            get_target(self.rng.choice(names())),
            tuple(self.rng.randbytes(9) for _ in some),
            tuple(self.stored() for _ in some),
            tuple(KernelInfo("a", "b", "c\n", "d", k, bool(k), 0.5) for k in some),
            recipes=tuple(Recipe("text", (k,)) for k in some),
            prologue=self.program(False) if deep else None,
        )

    def saved(self) -> SavedProgram:
        place = Place("file.py", 3)
        checks = (Check(IndexError, "no {index}", self.dim(), place, (RuntimeError, "none")),)
        tree = Named({"a": Items((Leaf(0), Fixed(None), Fixed(2.5)), True), "b": Given(1)})
        half = Operation("Pow", (Size(self.dim()), Constant(-0.5)))
        signature = Signature(
            (Parameter("x", "VAR_KEYWORD", tree),),
            (
                ArrayArgument("x", "in0", f32, self.dims(), self.dims(), paired=True),
                NumberArgument("k", "in1", self.n),
                UnusedArgument("z"),
            ),
            ("in0", None),
            (Buffer("out0", bf16, self.dims(), self.dims()),),
            (
                Same("out0"),
                Value("word"),
                Number("out0", int),
                View("out0", (2,), (1,), self.dim()),
                Restrided("out0", self.dims(), self.dims()),
            ),
            tree,
            (Held("w", self.stored()),),
            checks,
            2,
            (Scalar(half, slot="s"), Scalar(Size(slot="in1"), symbol="q")),
            "seed",
        )
        return SavedProgram("drawn", self.program(), signature)


@pytest.mark.parametrize("seed", drawn(range(40), 2))
def test_records_come_back(seed: int) -> None:
    made = write_record(SavedProgram, _Draw(seed).saved())
    through = json.loads(json.dumps(made.head))
    again = read_record(SavedProgram, through, made.blobs)
    repeated = write_record(SavedProgram, again)
    assert repeated.head == made.head
    assert [bytes(b) for b in repeated.blobs] == [bytes(b) for b in made.blobs]
    first = _Draw(seed).saved()
    assert again.program.arena is first.program.arena  # dims are interned
    assert again.program.inputs == first.program.inputs
    assert again.program.target == first.program.target
    assert again.signature.checks == first.signature.checks
    for a, b in zip(again.program.constants, first.program.constants, strict=True):
        assert a.dtype is b.dtype and a.array.tobytes() == b.array.tobytes()


def places(x: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree of JSON with each of its keys."""
    items: Any = x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else ()
    for key, value in list(items):
        yield x, key
        yield from places(value)


@pytest.mark.parametrize("seed", drawn(range(40), 6))
def test_nonsense_is_refused_in_words(seed: int) -> None:
    """A record is read, or it is refused: no other error comes out of it."""
    made, rng = write_record(SavedProgram, _Draw(seed).saved()), random.Random(seed)
    text = json.dumps(made.head)
    for _ in range(60):
        head = json.loads(text)
        holder, key = rng.choice(list(places(head)))
        if rng.random() < 0.3:
            del holder[key]
        else:
            junk = [None, -1, 10**9, 2.5, "q+", "n: 3", "", [], {}, [1], {"is": "Leaf"}, True]
            holder[key] = rng.choice(junk)
        try:
            read_record(SavedProgram, head, made.blobs)
        except Invalid as problem:
            assert str(problem)


def test_only_types_of_python_are_named() -> None:
    class Own(Exception):
        pass

    with pytest.raises(Invalid, match="Own is no type of Python's own"):
        write_record(Check, Check(Own, "words"))
