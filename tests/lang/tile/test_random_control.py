"""Random programs of branches, loops, calls and returns: translated they do what Python does."""

import linecache
import random
from typing import Any

import numpy as np
import pytest

import tilewright.language as tl
from tests.generators import checked
from tests.lang.tile.kernels import run
from tests.seeds import drawn
from tilewright.lang.tile.front.functions import function

VARIABLES = "abcd"


class Writer:
    """Writes the body of a function over the variables a, b, c and d. Numbers stay small and
    positive, where Python's and the kernel's arithmetic agree."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lines: list[str] = []
        self.loops = 0
        self.names = 0

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def term(self) -> str:
        return self.rng.choice([*VARIABLES, *VARIABLES, str(self.rng.randrange(1, 20))])

    def value(self) -> str:
        kind = self.rng.randrange(4)
        if kind == 0:
            return self.term()
        if kind == 1:
            return f"({self.term()} if {self.test()} else {self.term()})"
        if kind == 2:
            return f"helper({self.term()}, {self.term()})"
        return f"({self.term()} {self.rng.choice('+*')} {self.term()}) % 97"

    def test(self) -> str:
        one = f"{self.term()} {self.rng.choice(['<', '>', '==', '!=', '<=', '>='])} {self.term()}"
        kind = self.rng.randrange(6)
        if kind == 0:
            return f"not {self.rng.choice(VARIABLES)} > {self.rng.randrange(50)}"
        if kind == 1:
            return f"{one} {self.rng.choice(['and', 'or'])} {self.rng.choice(VARIABLES)} % 3 == 1"
        return one

    def block(self, depth: int, left: int, returns: bool) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.statement(depth, left, returns)

    def statement(self, depth: int, left: int, returns: bool) -> None:
        kind = self.rng.randrange(10) if left else self.rng.randrange(4)
        if kind < 2:
            self.add(depth, f"{self.rng.choice(VARIABLES)} = {self.value()}")
        elif kind == 2:
            one, other = self.rng.sample(VARIABLES, 2)
            self.add(depth, f"{one}, {other} = {other}, {self.value()}")
        elif kind == 3:
            name = self.rng.choice(VARIABLES)
            self.add(depth, f"{name} += {self.term()}")
            self.add(depth, f"{name} %= 89")
        elif kind < 7:
            self.add(depth, f"if {self.test()}:")
            self.block(depth + 1, left - 1, returns)
            if returns and self.rng.random() < 0.4:
                self.add(depth + 1, f"return {self.result()}")
            if self.rng.random() < 0.4:
                self.add(depth, f"elif {self.test()}:")
                self.block(depth + 1, left - 1, returns)
            if self.rng.random() < 0.6:
                self.add(depth, "else:")
                self.block(depth + 1, left - 1, returns)
        elif kind == 7 and returns:
            self.names += 1
            self.add(depth, f"for s{self.names} in static_range({self.rng.randrange(1, 4)}):")
            self.add(depth + 1, f"a = (a + s{self.names}) % 97")
            self.block(depth + 1, left - 1, returns and self.rng.random() < 0.5)
        elif kind == 8:
            self.names += 1
            name = f"i{self.names}"
            low, high = self.rng.randrange(5), self.rng.randrange(8)
            step = self.rng.choice([-2, -1, 1, 1, 3])
            bounds = self.rng.choice([f"{low}, {high}, {step}", f"b % {high + 1}"])
            self.add(depth, f"for {name} in range({bounds}):")
            self.add(depth + 1, f"{self.rng.choice(VARIABLES)} = ({self.term()} + {name}) % 97")
            self.block(depth + 1, left - 1, False)
        else:
            self.names += 1
            name = f"w{self.names}"
            self.add(depth, f"{name} = {self.term()} % 7")
            self.add(depth, f"while {name} > 0:")
            self.block(depth + 1, left - 1, False)
            self.add(depth + 1, f"{name} -= 1")

    def result(self) -> str:
        return f"({self.term()} + 0, {self.value()})"


def program(seed: int) -> str:
    rng = random.Random(seed)
    w = Writer(rng)
    w.add(0, "def body(a, b, c, d):")
    for _ in range(4):
        w.statement(1, 3, True)
    w.add(1, f"return {w.result()}")
    return "\n".join(w.lines) + "\n"


def plain(source: str, inputs: list[int]) -> list[int]:
    scope: dict[str, Any] = {
        "static_range": range,
        "helper": lambda x, y: y if x > y else (x + 2 * y) % 97,
    }
    exec(source, scope)
    return list(scope["body"](*inputs))


@function
def helper(x, y):
    if x > y:
        return y
    return (x + 2 * y) % 97


def check_seed(seed: int) -> None:
    source = program(seed)
    name = f"<random program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope = {"static_range": tl.static_range, "helper": helper}
    exec(compile(source, name, "exec"), scope)
    body = function(scope["body"])  # type: ignore

    @function
    def kernel(x, out):
        p, q = body(tl.load(x), tl.load(x + 1), tl.load(x + 2), tl.load(x + 3))
        tl.store(out, p)
        tl.store(out + 1, q)

    rng = np.random.default_rng(seed)
    for _ in range(4):
        inputs = rng.integers(0, 60, 4, dtype=np.int32)
        out = np.zeros(2, np.int32)
        run(kernel, x=inputs, out=out)
        assert out.tolist() == plain(source, inputs.tolist()), f"seed {seed}\n{source}"


@pytest.mark.parametrize("seed", drawn(range(30), quick=5))
def test_random_programs(seed: int) -> None:
    check_seed(seed)


GENERATOR = checked("control", check_seed)
