"""Random kernels do natively what they do step by step, and (with TRITON_INTERPRET=1, where Triton
is installed) what Triton's own interpreter does.

A failure prints the seed, the first element that differs and the smallest kernel found that fails
in the same way. `failure(kernel(seed))` is one of them alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.lang.tile.random_kernels import kernel
from tests.lang.tile.random_running import (
    Array,
    Failure,
    described,
    failure,
    launched,
    runnable,
    shrunk,
)
from tests.lang.tile.random_writer import ArraySpec, Kernel, Statement
from tests.lang.tile.triton_judge import Abstains
from tests.lang.tile.triton_judge import enabled as judged_by_triton
from tests.seeds import drawn

QUICK, ALL = 150, 2000


def check(seeds: range) -> None:
    failed: list[str] = []
    for seed in seeds:
        made = kernel(seed)
        found = failure(made)
        if found is not None:
            small = shrunk(made, found.kind)
            failed.append(described(small, failure(small) or found))
    assert not failed, f"{len(failed)} of {len(seeds)}\n\n" + "\n\n".join(failed[:5])


@pytest.mark.parametrize("first", drawn(range(0, QUICK, 10), quick=1))
def test_random_kernels(first: int) -> None:
    check(range(first, first + 10))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, 100))
def test_many_random_kernels(first: int) -> None:
    check(range(first, first + 100))


def test_a_seed_is_a_kernel() -> None:
    for seed in range(20):
        assert kernel(seed) == kernel(seed)
    assert len({kernel(seed).source() for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", [1536438660, 1536439404])
def test_what_a_loop_carries_keeps_its_type(seed: int) -> None:
    """Kernels with tl.maximum of an int16 and a negative number, which is an int32, and with a
    counter of int64: what is assigned to a carried variable is of its type all the same."""
    assert failure(kernel(seed)) is None


def test_every_operation_is_written() -> None:
    """Names that only one operation writes: the rarest are in one kernel of forty."""
    text = "\n".join(kernel(seed).source() for seed in range(2 * QUICK))
    words = (
        "tl.load( tl.store( tl.make_block_ptr( tl.advance( tl.make_tensor_descriptor( tl.dot( "
        "tl.atomic_ tl.where( tl.minimum( tl.umulhi( tl.exp( libdevice. tl.fma( tl.clamp( "
        "bitcast=True .reshape( tl.trans( tl.permute( tl.expand_dims( tl.broadcast_to( tl.join( "
        "tl.interleave( tl.cat( tl.split( tl.flip( tl.gather( tl.sum( tl.max( tl.argmin( "
        "tl.xor_sum( tl.reduce( tl.cumsum( tl.cumprod( tl.associative_scan( tl.sort( tl.topk( "
        "tl.histogram( tl.softmax( static_range while if else: return tl.map_elementwise( "
        "def&g N&-&1)"  # functions with loops, and such that call themselves
    )
    missing = [w for w in words.split() if w.replace("&", " ") not in text]
    assert not missing


def test_loops_carry_what_depends_on_each_other() -> None:
    """Sums of what is carried, pointers moved by it, loops as long as it says, and so on."""
    text = "\n".join(kernel(seed).source() for seed in range(300))
    patterns = {
        "a sum of a carried value": r" c\d+ \+= c\d+",
        "a pointer moved by one": r" p\d+ \+= c\d+",
        "two at once": r" c(\d+), c(\d+) = c\2, c\1 \+ c\2",
        "a swap": r" c(\d+), c(\d+) = c\2, c\1\n",
        "a value handed on": r" c\d+ = c\d+\n",
        "a value read at a carried place": r" = tl\.load\(x\d+ \+ \(?c\d+",
        "a loop as long as one says": r"for j\d+ in range\(c\d+",
        "a loop that one ends": r"while .*\(c\d+ ",
        "a number that wraps around": r"1073741824|4611686018427387904",
        "a selection": r"p\d+ \+= tl\.sum\(m\d+, 0\)",
        "a call": r" c\d+ = g\d+\(",
    }
    missing = [what for what, p in patterns.items() if not re.search(p, text)]
    assert not missing


@pytest.mark.skipif(not judged_by_triton(), reason="set TRITON_INTERPRET=1 where triton is")
def test_the_interpreter_of_triton_judges() -> None:
    """It has an opinion on a good part of the kernels, and finds a difference."""
    abstained = 0
    for seed in range(40):
        try:
            launched(kernel(seed), "triton")
        except Abstains:
            abstained += 1
    assert abstained < 30
    made = broken("tl.store(o1 + tl.arange(0, 16), v2)")
    assert (
        launched(made, "triton")["o1"].elements == launched(made, "native")["o1"].elements
    ).all()


# ---- the judge is judged


def broken(text: str, dtype: str = "int32", low: int = 0, high: int = 15) -> Kernel:
    """A kernel that writes to an array as a line says."""
    body = [
        Statement("pid = tl.program_id(0)"),
        Statement("v1 = tl.load(x1 + tl.arange(0, 16))"),
        Statement("v2 = v1 + 1"),
        Statement("for i in range(2):", [Statement("v3 = v1 * 2"), Statement(text)]),
    ]
    arrays = {
        "x1": ArraySpec(dtype, 0, 15, (-7, 7, 1.0)),
        "o1": ArraySpec(dtype, low, high, (-7, 7, 1.0), output=True),
    }
    return Kernel(1, (1,), [], body, {"x1": "", "o1": ""}, arrays, {}, {"o1": 0.0})


def test_a_write_outside_is_found_and_made_small() -> None:
    made = broken("tl.store(o1 + tl.arange(0, 16) + 1, v2)")
    found = failure(made)
    assert found is not None and "outside" in found.kind
    small = shrunk(made, found.kind)
    assert "v3" not in small.source() and "for" not in small.source()
    assert "seed 1" in described(small, found) and "tl.store" in described(small, found)


def test_a_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An element that only one of the two writes."""
    made = broken("tl.store(o1 + tl.arange(0, 16), v2)")
    assert failure(made) is None

    def off_by_one(k: Kernel, how: str) -> dict[str, Array]:
        arrays = launched(k, how)
        if how == "native":
            arrays["o1"].elements[5] += 1
        return arrays

    monkeypatch.setattr("tests.lang.tile.random_running.launched", off_by_one)
    found = failure(made)
    assert isinstance(found, Failure) and found.kind == "native differs"
    assert "[5]" in found.text and "1 of 16" in found.text


def test_errors_are_allowed_only_as_far_as_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    made = replace(broken("tl.store(o1 + tl.arange(0, 16), v2)", "float32"), errors={"o1": 1e-3})

    def moved(by: float) -> Failure | None:
        def run(k: Kernel, how: str) -> dict[str, Array]:
            arrays = launched(k, how)
            if how == "native":
                arrays["o1"].elements[:] += np.float32(by)
            return arrays

        monkeypatch.setattr("tests.lang.tile.random_running.launched", run)
        return failure(made)

    assert moved(5e-4) is None
    assert moved(2e-3) is not None


def test_a_product_of_large_numbers_is_drawn() -> None:
    assert kernel(1536631338).seed == 1536631338


def test_slow_compilation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = broken("tl.store(o1 + tl.arange(0, 16), v2)")
    monkeypatch.setattr("tests.lang.tile.random_running.LONGEST", 0.0)
    found = failure(made)
    assert found is not None and found.kind == "native slow"


def test_what_is_found_is_a_file_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    special = [kernel(seed) for seed in range(60)]  # some with dtypes among their constants
    for made in (broken("tl.store(o1 + tl.arange(0, 16) + 1, v2)"), *special):
        scope: dict[str, Any] = {}
        text = runnable(made).replace("print(failure(kernel))", "")
        exec(text, scope)
        assert scope["kernel"] == made
    exec(runnable(broken("tl.store(o1 + tl.arange(0, 16) + 1, v2)")), {})
    assert "written outside" in capsys.readouterr().out
