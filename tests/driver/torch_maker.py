"""Growing a random PyTorch program line by line: each line is run in eager before it is taken."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.driver.torch_programs import Input, Line, Program, Sizes

FLOATS = ("float32", "float32", "float32", "float64", "bfloat16", "float16")
WHOLE = ("int64", "int64", "int32", "int8", "uint8", "bool")
# What torch refuses to do with operands drawn at random: shapes that neither broadcast nor
# multiply and factors of different dtypes (RuntimeError), the last axis of a number (IndexError),
# a layer for other sizes (ValueError).
REFUSALS = (RuntimeError, IndexError, ValueError)
# In one program. More than this is the generator's fault.
MOST_REFUSED = 60
LARGEST = 50.0
ELEMENTS = 4096


class Maker:
    """`smooth` names values with moderate floats, `whole` those with small whole numbers, which
    every precision holds exactly: what jumps is applied to these only."""

    def __init__(self, seed: int, dynamic: bool = False, narrow: bool = False) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.dynamic = dynamic
        self.sizes: dict[str, int] = {"s0": 7, "s1": 4} if dynamic else {}
        self.floats: tuple[str, ...] = ("bfloat16", "float16") if narrow else FLOATS
        self.inputs: dict[str, Input] = {}
        self.modules: dict[str, str] = {}
        self.lines: list[Line] = []
        self.smooth: list[str] = []
        self.whole: list[str] = []
        self.numbers: list[str] = []
        self.scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
        self.holder = type("Modules", (), {})()
        self.scope["self"] = self.holder
        self.used: set[str] = set()
        self.count = 0
        self.refused = 0
        self.grad = False

    # ---- what there is

    def value(self, name: str) -> Tensor:
        return self.scope[name]

    def one(self, pool: list[str] | None = None, rank: int = 0) -> str | None:
        """A value, rather a recent one, and rather one that nothing uses yet."""
        pool = self.smooth if pool is None else pool
        fit = [n for n in pool if self.value(n).dim() >= rank and self.value(n).numel()]
        if not fit:
            return None
        unused = [n for n in fit if n not in self.used]
        if unused and self.random.random() < 0.5:
            return self.random.choice(unused)
        return self.random.choice(fit[-4:] if self.random.random() < 0.7 else fit)

    def either(self) -> list[str]:
        return self.smooth if self.random.random() < 0.75 else self.whole

    def axis(self, name: str) -> int:
        return self.random.randrange(max(1, self.value(name).dim()))

    def alike(self, name: str) -> str | None:
        """A value of the same shape and dtype."""
        x = self.value(name)
        fit = [
            n
            for n in self.smooth + self.whole
            if self.value(n).shape == x.shape and self.value(n).dtype == x.dtype
        ]
        return self.random.choice(fit) if fit else None

    def size(self, name: str, axis: int) -> str:
        """A size as text: in a program for several sizes it is read from the value."""
        return f"{name}.shape[{axis}]" if self.dynamic else str(self.value(name).shape[axis])

    # ---- what is added

    def add_input(self, pool: list[str], spec: Input) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = spec
        made = Program(self.seed, {name: spec}, {}, (), (), (self.sizes,))
        x = made.argument(name, spec, self.sizes)
        self.scope[name] = x.detach().clone() if isinstance(x, Tensor) else x
        pool.append(name)
        return name

    def input_like(self, shape: tuple[int | str, ...], pool: list[str] | None = None) -> str:
        r = self.random
        pool = self.smooth if pool is None else pool
        layout = r.choice(["", "", "", "", "transposed", "strided"])
        if pool is self.smooth:
            grad = self.grad and r.random() < 0.7
            return self.add_input(
                pool, Input(r.choice(self.floats), shape, grad=grad, layout=layout)
            )
        return self.add_input(pool, Input(r.choice(WHOLE), shape, "whole", layout=layout))

    def shape(self, rank: int | None = None) -> tuple[int | str, ...]:
        r = self.random
        rank = r.choice((0, 1, 2, 2, 3, 3, 4)) if rank is None else rank
        sizes: list[int | str] = [r.choice((1, 2, 3, 5, 8, 17)) for _ in range(rank)]
        if self.dynamic and rank:
            sizes[r.randrange(rank)] = "s0"
            if rank > 1 and r.random() < 0.4:
                sizes[r.randrange(rank)] = "s1"
        return tuple(sizes)

    def index(self, shape: tuple[int | str, ...], most: int) -> str:
        """An input of indices below a size."""
        dtype = self.random.choice(("int64", "int64", "int32"))
        return self.add_input([], Input(dtype, shape, "index", most))

    def new(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def module(self, constructor: str) -> str:
        name = f"m{len(self.modules)}"
        self.modules[name] = constructor
        made = eval(constructor, self.scope)
        with torch.no_grad():
            for p in made.parameters():
                p.copy_(torch.rand(p.shape) - 0.5)
        setattr(self.holder, name, made)
        return f"self.{name}"

    def say(self, pool: list[str], expression: str) -> str | None:
        """A new value; None where eager refuses it or its numbers leave what is wanted."""
        name = self.new()
        return name if self.write([name], f"{name} = {expression}", pool) else None

    def write(self, targets: list[str], text: str, pool: list[str]) -> bool:
        """Statements that define values; in-place ones among them are run on copies first."""
        scope = dict(self.scope)
        if "_(" in text or "] = " in text or "] += " in text:
            scope = _copied(scope)
        try:
            with torch.no_grad():
                exec(text, scope)
        except REFUSALS as refusal:
            self.refused += 1
            if self.refused > MOST_REFUSED:
                raise AssertionError(
                    f"torch refused {self.refused} lines and took {len(self.lines)}, "
                    f"at last {text}: {refusal}"
                ) from refusal
            return False
        if not all(self.welcome(scope[t], pool) for t in targets):
            return False
        self.scope = scope
        pool.extend(targets)
        self.lines.append(Line(tuple(targets), text))
        self.used |= self.lines[-1].uses - set(targets)
        return True

    def welcome(self, x: Any, pool: list[str]) -> bool:
        if not isinstance(x, Tensor) or x.dtype.is_complex or x.numel() > ELEMENTS:
            return False
        if pool is self.smooth:
            return x.is_floating_point() and bool((x.double().abs() < LARGEST).all())
        return not x.is_floating_point() and bool((x.double().abs() < 128).all())

    # ---- the whole

    def program(self, results: int, calls: list[Sizes]) -> Program:
        """The lines so far; results are values that nothing uses, and sometimes one that is."""
        defined = [t for line in self.lines for t in line.targets]
        sinks = [t for t in defined if t not in self.used]
        chosen = tuple(self.random.sample(sinks, min(len(sinks), results)))
        if self.random.random() < 0.3:
            chosen = tuple(dict.fromkeys((*chosen, self.random.choice(defined))))
        if self.random.random() < 0.05:
            chosen = (*chosen, chosen[0])  # one value as two results
        if self.random.random() < 0.05:
            chosen = (*chosen, next(iter(self.inputs)))  # an input as a result
        kinds = {
            n: (str(x.dtype).removeprefix("torch."), tuple(x.shape))
            for n, x in self.scope.items()
            if isinstance(x, Tensor)
        }
        return Program(
            self.seed,
            self.inputs,
            self.modules,
            tuple(self.lines),
            chosen,
            tuple(calls),
            self.grad,
            self.dynamic,
            kinds,
        ).needed()


def _copied(scope: dict[str, Any]) -> dict[str, Any]:
    """The scope with copies of all tensors; views of one memory stay so."""
    tensors = {n: x for n, x in scope.items() if isinstance(x, Tensor)}
    return scope | copy.deepcopy(tensors)
