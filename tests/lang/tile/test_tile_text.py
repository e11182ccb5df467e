"""Tile IR as text: what is printed reads back as the same kernel, and nonsense gets a sentence.

Every kernel that tests/lang/tile/kernels.py or random_running.py translates is printed and read
back as well.
"""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from tests.lang.tile.kernels import CASES
from tests.lang.tile.random_kernels import kernel as random_kernel
from tests.lang.tile.random_running import translated
from tests.seeds import drawn
from tilewright.base.errors import Invalid
from tilewright.ir.types import f32, i32
from tilewright.lang.tile.builder import IRBuilder
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.ir import Kernel, Operation, Place, Pointer, TileType, Value, walk
from tilewright.lang.tile.rules import verify
from tilewright.lang.tile.text import kernel_text, parse_kernel

SCALAR, ROW = TileType(f32), TileType(f32, (4,))


def case_kernel(name: str) -> Kernel:
    case = CASES[name]
    return translate(case.function, case.arguments(case.values(np.random.default_rng(0))))


@pytest.mark.parametrize("name", CASES)
def test_kernels_read_back(name: str) -> None:
    k = case_kernel(name)
    again = parse_kernel(kernel_text(k))
    assert again == k
    assert kernel_text(again) == kernel_text(k)
    assert [o.place for o in walk(again.body)] == [o.place for o in walk(k.body)]


@pytest.mark.parametrize("first", drawn(range(0, 400, 20), quick=1))
def test_random_kernels_read_back(first: int) -> None:
    for seed in range(first, first + 20):
        k = translated(random_kernel(seed))
        assert parse_kernel(kernel_text(k)) == k, f"seed {seed}"


def test_numbers_names_and_places_are_printed() -> None:
    b = IRBuilder()
    p = b.fresh(TileType(Pointer(f32)), "Größe")
    outer = Place('a "b"\\c.py', 3, 4, "f")
    for value in (math.nan, float("nan"), math.inf, -math.inf, -0.0, 1e-45, 5e300, 0.1):
        b.place = Place("x.py", 1, 0, "<lambda>", outer)
        (v,) = b.emit("const", [], [SCALAR], {"value": value})
        b.place = None
        b.emit("store", [p, v], [])
    b.emit("const", [], [TileType(i32)], {"value": -(2**31)})
    b.emit("print", [v], [], {"prefix": 'line\n"quoted" \\ tab\t', "hex": True})
    k = b.kernel("a kernel", [p], [16])
    again = parse_kernel(kernel_text(k))
    assert again == k and kernel_text(again) == kernel_text(k)
    assert math.copysign(1, again.body.operations[8].attrs["value"]) == -1  # -0.0 is not 0.0
    assert again.body.operations[0].place == Place("x.py", 1, 0, "<lambda>", outer)
    without = parse_kernel(kernel_text(k, places=False))
    assert without != k and without.body.operations[0].place is None


def test_equal_kernels_are_equal() -> None:
    one, two = case_kernel("matmul_relu"), case_kernel("matmul_relu")
    assert one == two and hash(one.body.operations[3]) == hash(two.body.operations[3])
    assert one != replace(two, positive=tuple(not p for p in two.positive))
    assert one != case_kernel("softmax")


def test_kernels_cannot_be_changed() -> None:
    k: Any = case_kernel("add")
    o = k.body.operations[0]
    with pytest.raises(FrozenInstanceError):
        k.name = "other"
    with pytest.raises(FrozenInstanceError):
        o.args = ()
    with pytest.raises(FrozenInstanceError):
        o.results[0].name = "x"
    with pytest.raises(TypeError):
        o.attrs["axis"] = 1
    with pytest.raises(AttributeError):
        k.body.operations.append(o)


# ---- nonsense

GOOD = """kernel k(%x.0: *f32 divisor 16, %n.1: i32 positive) {
  %2: i32 = const(value=0) @0
  %3: i32 = const(value=1)
  %s.4: f32 = const(value=0.5)
  %s.5: f32 = for(%2, %n.1, %3, %s.4)
    do(%i.6: i32, %s.7: f32) {
      %8: *f32 = offset(%x.0, %i.6)
      %9: f32 = load(%8)
      %s.10: f32 = map(%s.7, %9, fn="add")
      yield(%s.10)
    }
  store(%x.0, %s.5)
}
place 0 = "k.py" 3:4 in "k"
"""


def test_hand_written_text_is_a_kernel() -> None:
    k = parse_kernel(GOOD)
    assert kernel_text(k) == GOOD
    assert k.divisors == (16, 1) and k.positive == (False, True)


@pytest.mark.parametrize(
    "old, new, at, says",
    [
        ('fn="add"', 'fn="plus"', "line 9, column 7", "there is no function plus; there are"),
        ('fn="add"', "fn=3", "line 9, column 7", "fn is 3, not a string"),
        (', fn="add"', "", "line 9, column 7", "the attribute fn (a string) is missing"),
        ('fn="add"', 'fn="add", axis=0', "line 9, column 7", "no attribute axis; it has fn"),
        ('fn="add"', 'fn="add", fn="sub"', "line 9, column 44", "fn is given twice"),
        ("load(%8)", "loda(%8)", "line 8, column 17", "there is no operation loda; there are"),
        ("load(%8)", "load()", "line 8, column 7", "0 arguments, and it has 1 to 3 arguments"),
        ("load(%8)", "load(%n.1)", "line 8, column 7", "the address is no pointer"),
        ("load(%8)", "load(%80)", "line 8, column 22", "%80 is not defined above"),
        ("%9: f32", "%9: f16", "line 8, column 7", "gives f32"),
        ("%9: f32", "%9: f31", "line 8, column 11", "there is no type f31; there are"),
        ("%9: f32", "%9: f32[0]", "line 8, column 15", "sizes are 1 or more"),
        ("%9: f32", "%2: f32", "line 8, column 7", "there is a value with the number 2"),
        ("yield(%s.10)", "yield(%9, %s.10)", "line 5, column 3", "a carried value changes"),
        ("yield(%s.10)", "yield()", "line 5, column 3", "a carried value changes"),
        ("%s.5)\n}", "%s.10)\n}", "line 12, column 15", "%10 is not defined above, or in another"),
        ("%s.5)\n}", "%t.5)\n}", "line 12, column 15", "this is %s.5"),
        ("%s.5)\n}", "%s)\n}", "line 12, column 16", "a value ends with its number"),
        ("do(%i.6: i32, ", "do(", "line 7, column 31", "%6 is not defined above"),
        ("do(%i.6: i32, ", "do(%i.6: i64, ", "line 5, column 3", "the body takes other values"),
        ("do(", "then(", "line 6, column 5", "expected 'do'"),
        ("    }\n  store", "  store", "line 11, column 3", "expected '}' after yield"),
        ("}\nplace", "place", "line 1, column 53", "this block is never closed"),
        ("value=0.5", "value=half", "line 4, column 27", "expected a number, a string"),
        ("@0", "@7", "line 2, column 29", "there is no place 7; the last one is 0"),
        ("place 0 = ", "place 0 = 3 ", "line 14, column 11", "a quoted string"),
        ("kernel k", "kernal k", "line 1, column 1", "expected 'kernel'"),
        ("}\nplace", "}\nstore(%s.5)\nplace", "line 14, column 1", "expected the end, or a place"),
        (", %s.5)\n", ", %s.5, volatile=True)\n", "line 12, column 3", "no attribute volatile"),
        ("divisor 16", "divisor x", "line 1, column 29", "expected a size"),
    ],
)
def test_nonsense_gets_its_place(old: str, new: str, at: str, says: str) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(Invalid) as error:
        parse_kernel(GOOD.replace(old, new))
    assert at in str(error.value) and says in str(error.value), str(error.value)


def test_nothing_reads_as_a_kernel_by_accident() -> None:
    """Any line left out, doubled or cut short is an error with a line, or still a kernel."""
    lines = GOOD.splitlines(True)
    for k, line in enumerate(lines):
        for changed in ([], [line, line], [line[: len(line) // 2]]):
            try:
                verify(parse_kernel("".join(lines[:k] + changed + lines[k + 1 :])))
            except Invalid as error:
                assert "line " in str(error)


def test_verify_finds_what_no_text_says() -> None:
    k = parse_kernel(GOOD)
    store = k.body.operations[-1]
    foreign = Value(TileType(f32), 99)
    for operations, says in (
        ([*k.body.operations, k.body.operations[0]], "two values have the number 2"),
        ([replace(store, args=(store.args[0], foreign))], "uses %99, which is not defined"),
        ([Operation("loda")], "there is no operation loda"),
        (
            [*k.body.operations[:-1], replace(store, blocks=(k.body,))],
            "1 block, and it has 0 blocks",
        ),
    ):
        with pytest.raises(Invalid, match=says):
            verify(replace(k, body=replace(k.body, operations=tuple(operations))))
