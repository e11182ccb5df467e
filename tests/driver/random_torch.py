"""Random PyTorch programs through torch.compile, strict and as one graph, against eager.

python -m tests.driver.random_torch --count 100 [--first SEED]

A program is a list of calls over numbered values, the first of which are its inputs. What jumps
(comparisons, rounding, arg-reductions, sorting) is applied to small whole numbers only, which every
precision holds exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.seeds import run_seeds
from tests.suites.adapter import Work, compiled
from tilewright.bench.oracle import in_double

FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.float32)
# What torch refuses to do with operands drawn at random: shapes that neither broadcast nor
# multiply and factors of different dtypes (RuntimeError), the last axis of a number (IndexError).
REFUSALS = (RuntimeError, IndexError)
# In one program. Of all calls one in twenty is refused; more than this is the generator's fault.
MOST_REFUSED = 30


@dataclass(frozen=True)
class Call:
    text: str
    function: Callable[..., Tensor]
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    inputs: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    results: tuple[int, ...]

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        values = list(inputs)
        for call in self.calls:
            values.append(call.function(*(values[k] for k in call.operands)))
        return tuple(values[k] for k in self.results)

    def __str__(self) -> str:
        lines = [f"v{k}: {_kind(x)}" for k, x in enumerate(self.inputs)]
        for k, call in enumerate(self.calls, len(self.inputs)):
            lines.append(f"v{k} = {call.text.format(*(f'v{j}' for j in call.operands))}")
        return "\n".join([*lines, f"return {', '.join(f'v{k}' for k in self.results)}"])

    def needed(self) -> Program:
        """Without calls that no result needs."""
        first = len(self.inputs)
        keep: set[int] = set()
        todo = list(self.results)
        while todo:
            k = todo.pop()
            if k >= first and k not in keep:
                keep.add(k)
                todo += self.calls[k - first].operands
        new = {k: k for k in range(first)} | {k: first + i for i, k in enumerate(sorted(keep))}
        calls = [
            Call(c.text, c.function, tuple(new[j] for j in c.operands))
            for k, c in enumerate(self.calls, first)
            if k in keep
        ]
        return Program(self.inputs, tuple(calls), tuple(new[k] for k in self.results))


def _kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}, strides {list(x.stride())}"


class _Maker:
    """Grows a program; `smooth` holds moderate floats, `whole` small whole numbers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.values: list[Tensor] = []
        self.calls: list[Call] = []
        self.smooth: list[int] = []
        self.whole: list[int] = []
        self.refused = 0

    def program(self) -> Program:
        r = self.random
        for _ in range(r.randint(1, 3)):
            self._input(self.smooth, r.choice(FLOATS))
        self._input(self.whole, r.choice(WHOLE))
        inputs = tuple(self.values)
        while len(self.calls) < r.randint(3, 14):
            r.choice(
                [self.unary, self.unary, self.binary, self.reduce, self.view, self.view]
                + [self.rows, self.product, self.joined, self.cast, self.jump, self.indexed]
            )()
        count = len(self.values)
        last = range(len(inputs), count)
        results = tuple(sorted(r.sample(last, min(len(last), r.randint(1, 3)))))
        return Program(inputs, tuple(self.calls), results).needed()

    def _input(self, pool: list[int], dtype: torch.dtype) -> None:
        shape = [self.random.choice((1, 2, 3, 5, 8, 17)) for _ in range(self.random.randint(0, 4))]
        x = torch.randint(-7, 8, shape, generator=self.generator)
        if pool is self.smooth:
            x = torch.randn(shape, generator=self.generator, dtype=torch.float64).clamp(-3, 3)
        x = x.to(dtype)
        if x.dim() > 1 and self.random.random() < 0.3:
            x = x.transpose(0, 1)  # not contiguous
        pool.append(len(self.values))
        self.values.append(x)

    def add(self, pool: list[int], text: str, function: Callable, *operands: int) -> None:
        try:
            made = function(*(self.values[k] for k in operands))
        except REFUSALS as refusal:
            self.refused += 1
            if self.refused > MOST_REFUSED:
                raise AssertionError(
                    f"torch refused {self.refused} calls and took {len(self.calls)}, "
                    f"at last {text}: {refusal}"
                ) from refusal
            return
        if made.numel() > 4096 or made.dtype.is_complex:
            return
        if pool is self.smooth and not bool((made.double().abs() < 50).all()):
            return
        if pool is self.whole and made.is_floating_point() and made.dtype != torch.float32:
            return
        pool.append(len(self.values))
        self.values.append(made)
        self.calls.append(Call(text, function, operands))

    def one(self, pool: list[int]) -> int:
        return self.random.choice(pool[-4:] if self.random.random() < 0.7 else pool)

    def either(self) -> list[int]:
        return self.smooth if self.random.random() < 0.7 else self.whole

    # ---- what a program is made of

    def unary(self) -> None:
        names = "tanh sigmoid sin cos erf relu neg abs square".split()
        names += ["nn.functional.gelu", "nn.functional.silu", "nn.functional.softplus"]
        name = self.random.choice(names)
        function: Any = torch
        for part in name.split("."):
            function = getattr(function, part)
        self.add(self.smooth, f"{name}({{}})", function, self.one(self.smooth))

    def binary(self) -> None:
        pool = self.either()
        name = self.random.choice("add sub mul maximum minimum".split())
        if pool is self.whole and name == "mul":
            name = "minimum"  # whole numbers stay small
        self.add(pool, f"{name}({{}}, {{}})", getattr(torch, name), self.one(pool), self.one(pool))

    def reduce(self) -> None:
        name = self.random.choice("mean amax amin var logsumexp".split())
        k = self.one(self.smooth)
        if name == "var" and self.values[k].numel() < 2:
            return
        rank = self.values[k].dim()
        axes = tuple(sorted(self.random.sample(range(rank), self.random.randint(0, rank))))
        axes = axes or tuple(range(rank))
        keep = self.random.random() < 0.5
        text = f"{name}({{}}, dim={axes}, keepdim={keep})"
        self.add(self.smooth, text, lambda x: getattr(torch, name)(x, dim=axes, keepdim=keep), k)

    def view(self) -> None:
        pool = self.either()
        k = self.one(pool)
        x, r = self.values[k], self.random
        if x.dim() == 0:
            self.add(pool, "{}.expand(3)", lambda x: x.expand(3), k)
            return
        axis, other = r.randrange(x.dim()), r.randrange(x.dim())
        order = r.sample(range(x.dim()), x.dim())
        start, step = r.randrange(x.shape[axis]), r.randint(1, 2)
        choices: list[tuple[str, Callable]] = [
            (f"{{}}.permute({order})", lambda x: x.permute(order)),
            (f"{{}}.flatten({min(axis, other)})", lambda x: x.flatten(min(axis, other))),
            (f"{{}}.unsqueeze({axis})", lambda x: x.unsqueeze(axis)),
            (f"{{}}.flip({axis})", lambda x: x.flip(axis)),
            (f"{{}}.roll({step}, {axis})", lambda x: x.roll(step, axis)),
            (f"{{}}.select({axis}, {start})", lambda x: x.select(axis, start)),
            (
                f"{{}}[::{step}] along {axis} from {start}",
                lambda x: x.movedim(axis, 0)[start::step].movedim(0, axis),
            ),
            (f"{{}}.chunk(2, {axis})[0]", lambda x: x.chunk(2, axis)[0]),
            ("pad({}, (1, 2))", lambda x: F.pad(x, (1, 2))),
        ]
        self.add(pool, *r.choice(choices), k)

    def rows(self) -> None:
        k = self.one(self.smooth)
        x = self.values[k]
        if x.dim() == 0 or not x.shape[-1]:
            return
        width = x.shape[-1]
        axis = self.random.randrange(x.dim())
        choices: list[tuple[str, Callable]] = [
            (f"softmax({{}}, {axis})", lambda x: x.softmax(axis)),
            (f"log_softmax({{}}, {axis})", lambda x: x.log_softmax(axis)),
            (f"layer_norm({{}}, {width}, eps=0.1)", lambda x: F.layer_norm(x, (width,), eps=0.1)),
            (f"cumsum({{}}, {axis}) / 4", lambda x: x.cumsum(axis) / 4),
        ]
        self.add(self.smooth, *self.random.choice(choices), k)

    def product(self) -> None:
        a = self.one(self.smooth)
        x = self.values[a]
        if x.dim() < 2:
            return
        scale = x.shape[-1] ** -0.5
        if self.random.random() < 0.5:
            text = f"({{}} @ {{}}.mT) * {scale:.3f}"
            self.add(self.smooth, text, lambda x: (x @ x.mT) * scale, a)
        else:
            b = self.one(self.smooth)
            self.add(
                self.smooth, f"({{}} @ {{}}) * {scale:.3f}", lambda x, y: (x @ y) * scale, a, b
            )

    def joined(self) -> None:
        pool = self.either()
        k = self.one(pool)
        x = self.values[k]
        if x.dim():
            axis = self.random.randrange(x.dim())
            self.add(pool, f"cat(({{0}}, {{0}}), {axis})", lambda x: torch.cat((x, x), axis), k)
        self.add(pool, "stack(({0}, {0}), -1)", lambda x: torch.stack((x, x), -1), k)

    def cast(self) -> None:
        pool = self.either()
        dtype = self.random.choice(FLOATS if pool is self.smooth else WHOLE)
        self.add(pool, f"{{}}.to({dtype})", lambda x: x.to(dtype), self.one(pool))

    def jump(self) -> None:
        a, b = self.one(self.whole), self.one(self.smooth)
        if self.values[a].dtype == torch.uint8:
            return  # its negative numbers wrapped around
        choices: list[tuple[list[int], str, Callable, tuple[int, ...]]] = [
            (
                self.smooth,
                "where({} > 0, {}, 0.5)",
                lambda w, x: torch.where(w > 0, x, 0.5),
                (a, b),
            ),
            (self.whole, "sort({}).values", lambda w: torch.sort(w).values, (a,)),
            (self.whole, "argmax({} * 16 + iota, -1)", _distinct_argmax, (a,)),
            (self.whole, "({} >= 1).sum(-1)", lambda w: (w >= 1).sum(-1), (a,)),
            (self.whole, "{} // 2", lambda w: w // 2, (a,)),
        ]
        pool, text, function, operands = self.random.choice(choices)
        self.add(pool, text, function, *operands)

    def indexed(self) -> None:
        a, k = self.one(self.smooth), self.one(self.whole)
        if not self.values[a].dim() or self.values[k].is_floating_point():
            return

        def take(x: Tensor, w: Tensor) -> Tensor:
            return x[(w.long() % x.shape[0]).flatten()[:9]]

        def put(x: Tensor) -> Tensor:
            y = x.clone()
            y[0] = y[-1] * 0.5
            return y

        if self.random.random() < 0.6:
            self.add(self.smooth, "{0}[({1} % len({0})).flatten()[:9]]", take, a, k)
        else:
            self.add(self.smooth, "{} with [0] = [-1] * 0.5", put, a)


def _distinct_argmax(w: Tensor) -> Tensor:
    """Whole numbers made distinct along the last axis: which of equal ones wins is nobody's."""
    return torch.argmax(w * 64 + torch.arange(w.shape[-1]), -1)


def random_program(seed: int) -> Program:
    return _Maker(seed).program()


# ---- judging


def fault(program: Program) -> str | None:
    """What is wrong with the compiled program, or None."""
    torch._dynamo.reset()
    with torch.no_grad():
        expected = program(*program.inputs)
        exact = in_double(program, *program.inputs)
        try:
            fast = compiled(
                program.__call__, "tilewright", strict=True, fullgraph=True, work=Work()
            )
            got = fast(*(x.clone() for x in program.inputs))
        except Exception as problem:  # reported with the program that shows it
            return f"{type(problem).__name__}: {problem}"
    for k, (a, b, c) in enumerate(zip(got, expected, exact, strict=True)):
        if found := _difference(a, b, c):
            return f"result {k} {found}"
    return None


def _difference(ours: Tensor, eager: Tensor, exact: Tensor) -> str | None:
    if (ours.dtype, ours.shape, _strides(ours)) != (eager.dtype, eager.shape, _strides(eager)):
        return f"is {_kind(ours)}, in eager {_kind(eager)}"
    if not eager.is_floating_point():
        return None if torch.equal(ours, eager) else "differs"
    if eager.numel() == 0:
        return None
    x, y, z = (t.double() for t in (ours, eager, exact))
    if not torch.equal(x.isnan(), y.isnan()):
        return "is not a number where eager's is one"
    own = float((y - z).nan_to_num().abs().max())
    # Rounding to the dtype at every call, of numbers below 50; one sample may be small by luck.
    allowed = 4 * own + 64 * torch.finfo(eager.dtype).eps * max(
        1.0, float(z.abs().nan_to_num().max())
    )
    off = float((x - z).nan_to_num().abs().max())
    return None if off <= allowed else f"is off by {off:.3g}, allowed is {allowed:.3g}"


def _strides(x: Tensor) -> list[int]:
    """Of axes that have one: torch itself does not say the same of axes of one element."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A shorter one that still fails: any single value as the only result."""
    first, count = len(program.inputs), len(program.inputs) + len(program.calls)
    for k in range(first, count):
        shorter = Program(program.inputs, program.calls, (k,)).needed()
        if fails(shorter):
            return shorter
    return program


def check_seed(seed: int) -> None:
    """Raises with a short program that still fails."""
    program = random_program(seed)
    problem = fault(program)
    if problem is not None:
        small = shrink(program, lambda p: fault(p) is not None)
        raise AssertionError(f"seed {seed}: {problem}\n{small}")


if __name__ == "__main__":
    raise SystemExit(run_seeds(check_seed, "programs", 100, __doc__))
