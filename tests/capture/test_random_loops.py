"""The generator of loops: what it draws, what it finds, and some of its draws."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capture import random_loops
from tests.capture.loop_maker import LoopProgram
from tests.capture.random_loops import as_code, check_seed, failure, random_loop, smaller
from tests.seeds import drawn

PLAIN = LoopProgram(
    *(0, "for t in range(20):", ("h0 = y[0]", "o1 = []")),
    body=("h0 = torch.tanh(h0 @ w + x[:, t])", "o1.append(h0)"),
    after=(),
    results=("h0", "torch.stack(o1)"),
)


def test_programs_are_of_every_kind() -> None:
    programs = [random_loop(seed) for seed in range(300)]
    text = "\n".join(p.source() for p in programs)
    words = "append( nonlocal nn.GRUCell axis=1 enumerate( break no_grad .mul_( locals() dtype="
    missing = [w for w in words.split() if w not in text]
    assert not missing
    assert any(p.grad for p in programs) and any(p.dynamic for p in programs)
    assert any(p.native for p in programs)
    assert all(str(random_loop(seed)) == str(random_loop(seed)) for seed in range(10))


def test_a_program_is_the_same_from_its_file() -> None:
    made = random_loop(3)
    code = as_code(made).replace("reproduce(GENERATOR, ", "print((MADE := ")
    scope: dict[str, Any] = {}
    exec(code + ")", scope)
    assert scope["MADE"] == made


def test_what_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(PLAIN) is None
    traced = random_loops.traced

    def off(p: LoopProgram, ours: bool) -> list[Any]:
        found = traced(p, ours)
        if ours:
            found[1][0] = found[1][0] + 1e-3
        return found

    monkeypatch.setattr(random_loops, "traced", off)
    found = failure(PLAIN)
    assert found is not None and found.what == "wrong" and "call 1, value 0" in found.text
    assert any(p.results == ("h0",) for p in smaller(PLAIN))


@pytest.mark.parametrize("seed", drawn(range(60), 3))
def test_drawn(seed: int) -> None:
    check_seed(seed)
