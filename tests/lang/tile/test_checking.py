"""The checking mode: what it finds, and what it must not find."""

import pytest
from rich.console import Console

import tilewright.language as tl
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.stepping.checking import CheckFailed, check
from tilewright.lang.tile.stepping.eager import run_eager
from tilewright.lang.tile.stepping.findings import OUT_OF_BOUNDS, RACE, UNDEFINED

torch = pytest.importorskip("torch")


def line_of(function, text):
    """The line of the file that has this text in a kernel."""
    lines = function.source.splitlines()
    return f"test_checking.py:{function.line + next(k for k, s in enumerate(lines) if text in s)}"


@TileFunction
def scaled(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    tl.store(out + at, value * 2, mask=inside)


def test_a_right_kernel_has_no_findings():
    x, out = torch.randn(20), torch.empty(20)
    given = {"x": x, "out": out, "n": 20, "BLOCK": 8}
    report = check(scaled, (3,), given, uninitialised=["out"])
    assert not report
    assert torch.equal(out, x * 2)


def test_out_of_bounds_per_element():
    given = {"x": torch.randn(20), "out": torch.zeros(24), "n": 22, "BLOCK": 8}
    with pytest.raises(CheckFailed) as error:
        check(scaled, (3,), given)
    (found,) = error.value.report
    assert found.kind == OUT_OF_BOUNDS and found.count == 2 and found.program == (2, 0, 0)
    assert found.where.endswith(line_of(scaled, "value = "))
    assert "x + 20, 1 element past the end of x (20 elements of f32)" in found.what
    assert line_of(scaled, "value = ") in str(error.value)


def test_a_neighbour_in_the_same_storage_is_out_of_bounds():
    """The rest of the storage can be touched, but it is none of the tensor's."""
    both = torch.zeros(16)
    given = {"x": both[:8], "out": torch.zeros(16), "n": 12, "BLOCK": 16}
    (found,) = check(scaled, (1,), given, raises=False)
    assert found.kind == OUT_OF_BOUNDS and found.count == 4
    run_eager(scaled, (1,), given)  # running alone allows it, as a compiled kernel does


@TileFunction
def masked(x, out, n, BLOCK: tl.constexpr, HOW: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside)
    if HOW == "store":
        tl.store(out + at, value)
    elif HOW == "where":
        tl.store(out + at, tl.where(inside, value, 0.0))
    elif HOW == "sum":
        tl.store(out, tl.sum(value, 0))
    elif HOW == "and":
        tl.store(out + at, 1.0, mask=inside & (value > -1000))
    elif HOW == "address":
        tl.store(out + tl.load(x + at, mask=inside).to(tl.int32), 1.0, mask=at < n + 1)
    elif HOW == "branch":
        if tl.max(value, 0) > 0:
            tl.store(out, 1.0)
    elif HOW == "atomic":
        tl.atomic_add(out + at, value)


@pytest.mark.parametrize(
    "how, wrong",
    [
        ("store", "a store writes"),
        ("where", ""),
        ("sum", "a store writes"),
        ("and", ""),
        ("address", "the address of a store depends on"),
        ("branch", "a branch depends on"),
        ("atomic", "an atomic takes"),
    ],
)
def test_undefined_values_are_found_where_they_matter(how, wrong):
    x = torch.arange(8).float()
    given = {"x": x, "out": torch.zeros(8), "n": 6, "BLOCK": 8, "HOW": how}
    report = check(masked, (1,), given, raises=False)
    if not wrong:
        assert not report, str(report)
        return
    (found,) = report
    assert found.kind == UNDEFINED and found.what.startswith(wrong)
    assert "without other=" in found.what
    source = "tl.load(x + at, mask=inside).to" if how == "address" else "value = "
    assert str(found.other).endswith(line_of(masked, source))


def test_memory_that_nothing_was_written_to():
    @TileFunction
    def reads(x, out, n):
        tl.store(x + 1, 5.0)
        at = tl.arange(0, 4)
        tl.store(out + at, tl.load(x + at))

    x = torch.empty(4)
    given = {"x": x, "out": torch.empty(4), "n": 1}
    (found,) = check(reads, (1,), given, uninitialised=["x", "out"], raises=False)
    assert found.kind == UNDEFINED and found.count == 3
    assert "an element of x that nothing was written to" in found.what
    assert not check(reads, (1,), given, raises=False)
    with pytest.raises(Invalid, match="no argument is called nothing"):
        check(reads, (1,), given, uninitialised=["nothing"])


@TileFunction
def meeting(x, out, lock, BLOCK: tl.constexpr, HOW: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mine = tl.program_id(0) * BLOCK + at
    value = tl.load(x + mine)
    if HOW == "write":
        tl.store(out + at, value)
    elif HOW == "read":
        tl.store(x + mine, value + tl.load(x + (mine + 1) % (3 * BLOCK)))
    elif HOW == "atomic":
        tl.atomic_add(out + at, value)
    elif HOW == "mixed":
        tl.atomic_add(out + at, value)
        tl.store(x + mine, tl.load(out + at))
    elif HOW == "locked":
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        tl.store(out + at, tl.load(out + at) + value)
        tl.atomic_xchg(lock, 0)
    elif HOW == "relaxed":
        while tl.atomic_cas(lock, 0, 1, sem="relaxed") == 1:
            pass
        tl.store(out + at, tl.load(out + at) + value)
        tl.atomic_xchg(lock, 0, sem="relaxed")
    elif HOW == "lanes":
        tl.store(out + mine // 2, value)
    elif HOW == "own":
        tl.store(out + mine, value)
        tl.store(x + mine, tl.load(out + mine))


def meet(how):
    given = {
        "x": torch.randn(24),
        "out": torch.zeros(24),
        "lock": torch.zeros(1, dtype=torch.int32),
        "BLOCK": 8,
        "HOW": how,
    }
    return check(meeting, (3,), given, raises=False)


@pytest.mark.parametrize("how", ["atomic", "locked", "own"])
def test_programs_in_order_or_apart_do_not_race(how):
    report = meet(how)
    assert not report, str(report)


@pytest.mark.parametrize(
    "how, here, there",
    [
        ("write", "tl.store(out + at, value)", "tl.store(out + at, value)"),
        ("mixed", "tl.atomic_add(out + at, value)", "tl.load(out + at))"),
        ("relaxed", "tl.load(out + at) + value", "tl.load(out + at) + value"),
    ],
)
def test_races_name_both_places(how, here, there):
    races = meet(how).of(RACE)
    assert races
    names = [(f.where.split(":")[-1], str(f.other).split(":")[-1]) for f in races]
    lines = [k + meeting.line for k, s in enumerate(meeting.source.splitlines()) if here in s]
    others = [k + meeting.line for k, s in enumerate(meeting.source.splitlines()) if there in s]
    assert any((str(a), str(b)) in names for a in lines for b in others)


def test_a_read_of_what_another_program_writes():
    races = meet("read").of(RACE)
    assert {f.what.split()[4] for f in races} == {"reads", "writes"}
    # The last element of each block is read by the program before it.
    assert any("x[8]" in f.what for f in races)


def test_lanes_of_one_store():
    (found,) = meet("lanes").of(RACE)
    assert found.what == "one store writes different values to out[0]" and found.count == 12


def test_places_inside_functions_say_who_called():
    @TileFunction
    def deep(p):
        return tl.load(p + 99)

    @TileFunction
    def outer(x, out):
        tl.store(out, deep(x))

    given = {"x": torch.zeros(4), "out": torch.zeros(1)}
    (found,) = check(outer, (1,), given, raises=False)
    inner, call = found.lines()[:2]
    assert inner.endswith("return tl.load(p + 99)") and call.endswith("tl.store(out, deep(x))")


def test_python_itself_is_checked_with_the_switch():
    given = {"x": torch.randn(20), "out": torch.zeros(24), "n": 22, "BLOCK": 8}
    with knobs.tile_check.override(True), pytest.raises(CheckFailed) as error:
        run_eager(scaled, (3,), given)
    (found,) = error.value.report
    assert found.kind == OUT_OF_BOUNDS and found.where.endswith(line_of(scaled, "value = "))


def test_a_branch_of_python_that_depends_on_nothing():
    given = {"x": torch.ones(8), "out": torch.zeros(8), "n": 6, "BLOCK": 8, "HOW": "branch"}
    with knobs.tile_check.override(True), pytest.raises(CheckFailed, match="a branch depends on"):
        run_eager(masked, (1,), given)


def test_the_report_is_a_table():
    given = {"x": torch.randn(20), "out": torch.zeros(24), "n": 22, "BLOCK": 8}
    report = check(scaled, (3,), given, raises=False)
    console = Console(width=1000)  # the path of the source may be long
    with console.capture() as shown:
        console.print(report)
    text = shown.get()
    assert "scaled: 1 findings" in text and "value = tl.load" in text and "2, 0, 0" in text
