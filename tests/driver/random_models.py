"""Random networks with gradients: layers and blocks of torch.nn, as one graph, against eager and
float64. `python -m tests.suites.random_models` runs them; tests/driver/torch_blocks.py says what
they are made of.

Every network is differentiated, with respect to its inputs and all its weights, in training mode:
running statistics are judged too.
"""

from __future__ import annotations

import random

from tests.driver import random_torch
from tests.driver.random_torch import about, failure, prepare
from tests.driver.torch_blocks import STEPS
from tests.driver.torch_maker import Maker
from tests.driver.torch_programs import Program, smaller
from tests.generators import Generator

# Most of a network is float32, some inputs are not.
FLOATS = ("float32",) * 12 + ("float64", "bfloat16", "float16")


def random_model(seed: int) -> Program:
    """The network of a seed. It runs in eager."""
    functions, weights = zip(*STEPS, strict=True)
    r = random.Random(f"model {seed}")
    m = Maker(seed)
    m.random, m.floats, m.grad = r, FLOATS, True
    m.input_like(m.shape(r.choice((2, 3, 4, 4))))
    m.input_like(m.shape(), m.whole)
    wanted = r.choice((4, 6, 8, 12, 20))
    while len(m.lines) < wanted:
        r.choices(functions, weights)[0](m)
    return random_torch.running(m.program(r.randint(2, 6), [{}]))


def as_code(program: Program) -> str:
    return random_torch.as_code(program, "tests.driver.random_models")


GENERATOR = Generator("models", random_model, failure, smaller, as_code, about, prepare)
