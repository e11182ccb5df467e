"""Random PyTorch programs through torch.compile, as one graph, against eager and float64.

python -m tests.driver.random_torch --count 100 [--first SEED]

Half of the programs are differentiated, a fifth has sizes that change between calls, a tenth
computes in 16 bits only. What jumps (comparisons, rounding, arg-reductions, order) is applied to
small whole numbers only, which every precision holds exactly.
"""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from tests.driver import torch_judge
from tests.driver.torch_layers import LONG, STEPS
from tests.driver.torch_maker import Maker
from tests.driver.torch_programs import Input, Program, Sizes, smaller
from tests.driver.torch_steps import Step
from tests.generators import Failure, Generator
from tests.seeds import run_generator
from tests.shrinking import shrunk

# Sizes of the second and third call: the first ones are the maker's.
OTHER_SIZES = (2, 3, 5, 11, 16, 33)


def random_program(seed: int, steps: Sequence[tuple[Step, float]] = (*STEPS, *LONG)) -> Program:
    """The program of a seed. It runs in eager, with every one of its sizes."""
    functions, weights = zip(*steps, strict=True)
    r = random.Random(seed)
    m = Maker(seed, dynamic=r.random() < 0.2, narrow=r.random() < 0.1)
    m.grad = r.random() < 0.5
    for _ in range(r.randint(1, 3)):
        m.input_like(m.shape())
    m.input_like(m.shape(), m.whole)
    if r.random() < 0.2:
        m.add_input(m.smooth, Input(r.choice(m.floats), (), grad=m.grad))
    wanted = r.choice((3, 5, 8, 12, 16)) if r.random() < 0.98 else 60
    while len(m.lines) < wanted:
        r.choices(functions, weights)[0](m)
    calls: list[Sizes] = [m.sizes]
    if m.dynamic:
        calls += [{n: r.choice(OTHER_SIZES) for n in m.sizes} for _ in range(r.choice((1, 2)))]
    elif m.numbers:
        calls = [{"call": k} for k in range(3)]
    made = m.program(r.randint(1, 4), calls)
    return running(made)


def running(p: Program) -> Program:
    """With the calls that eager runs: some lines are for the first sizes only."""
    good = []
    for sizes in p.calls:
        try:
            with torch.no_grad():
                p.module()(*p.arguments(sizes))
        except (RuntimeError, IndexError, ValueError):
            continue
        good.append(sizes)
    return replace(p, calls=tuple(good) or p.calls[:1])


def failure(program: Program) -> Failure | None:
    return torch_judge.failure(program)


def as_code(program: Program, module: str = "tests.driver.random_torch") -> str:
    quoted = "".join(f"# {line}".rstrip() + "\n" for line in str(program).splitlines())
    return (
        f"from {module} import GENERATOR\n"
        "from tests.driver.torch_programs import Input, Line, Program\n"
        "from tests.generators import reproduce\n\n"
        f"{quoted}\n{program.as_code()}\nreproduce(GENERATOR, PROGRAM)\n"
    )


def about(program: Program) -> str:
    """What a program calls."""
    words = re.findall(r"(?:torch|F|nn)\.\w+|\.\w+(?=\()", program.source())
    return " ".join(sorted({w.strip(".") for w in words} - {"nn.Module", "__init__", "clone"}))


def check_seed(seed: int) -> None:
    """Raises with a short program that still fails. Long ones take too long for ordinary tests."""
    program = random_program(seed, STEPS)
    found = failure(program)
    if found is not None and not found.skipped:
        small, why = shrunk(GENERATOR, program, found, failure, 60)
        raise AssertionError(f"seed {seed}: {why}\n{small}")


def prepare() -> None:
    """Everything that a first compilation imports, without running anything of ours."""
    importlib.import_module("tilewright.driver.program.compile")
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))


GENERATOR = Generator("torch", random_program, failure, smaller, as_code, about, prepare)

if __name__ == "__main__":
    raise SystemExit(run_generator("torch", 100, __doc__))
