"""Inputs that eager refuses while it runs: indices out of range, divisors of 0, probabilities that
are none. Compiled programs have to refuse the same ones, in the same words, and no others.

python -m tests.driver.hostile_inputs --count 100 [--first SEED]

A program is one such operator with something computed in front of its index and behind its result,
compiled once (static or dynamic, with gradients or not, or as a branch of torch.cond) and called
with several inputs: good ones, and ones with bad elements at places drawn at random.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

import tilewright as tw
from tests.generators import checked
from tests.seeds import run_seeds

CALLS = 5  # inputs per program; the first are good
FLOATS = (torch.float32, torch.float32, torch.float64, torch.bfloat16)
WHOLE = (torch.int64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
INDICES = (torch.int64, torch.int64, torch.int32)

Arguments = tuple[Any, ...]


@dataclass
class Draw:
    """What a program is drawn from. `bad` elements are put into the inputs of the next call."""

    rng: random.Random
    bad: int = 0
    found: list[float] = field(default_factory=list)  # what was put there

    def size(self, least: int = 2) -> int:
        return self.rng.choice([least, 3, 5, 8, 17, 40])

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.rng.randrange(1 << 30))

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self.generator()).to(dtype)

    def chances(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator())

    def index(self, shape: Sequence[int], size: int, wrap: bool = False) -> Tensor:
        """Indices into `size` elements. Where eager takes none below 0, -1 is a bad one."""
        low = -size if wrap else 0
        out = torch.randint(low, size, tuple(shape), generator=self.generator())
        far = [size, size + 1, size + self.rng.randrange(1000), low - 1, low - 7]
        return self.spoil(out, [*far, -(1 << 31), (1 << 31) - 1])

    def spoil(self, x: Tensor, values: Sequence[float]) -> Tensor:
        """The tensor with bad elements somewhere."""
        flat = x.flatten()
        for _ in range(self.bad if flat.numel() else 0):
            value = self.rng.choice(list(values))
            flat[self.rng.choice([0, flat.numel() - 1, self.rng.randrange(flat.numel())])] = value
            self.found.append(value)
        return flat.reshape(x.shape)


Maker = Callable[[Draw, int, int], Callable[[Draw], Arguments]]


@dataclass(frozen=True)
class Use:
    """An operator that asks something of its operands, and arguments for it. The first argument is
    data, the second what eager may refuse."""

    name: str
    function: Callable[..., Any]
    make: Maker
    grad: bool = True  # has the operator a gradient with respect to its first argument?
    random: bool = False  # results are drawn: only whether it raises is compared


def _rows(wrap: bool = False, two: bool = False, least: int = 2) -> Maker:
    """x of (n, m), and indices of its rows."""

    def make(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
        shape = (d.size(least), d.size()) if two and d.rng.random() < 0.5 else (d.size(least),)
        dtype = d.rng.choice(FLOATS)
        return lambda d: (d.floats(n, m, dtype=dtype), d.index(shape, n, wrap))

    return make


def _columns(wrap: bool = False) -> Maker:
    def make(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
        k = d.size()
        return lambda d: (d.floats(n, m), d.index((k,), m, wrap))

    return make


def _flat(wrap: bool = False) -> Maker:
    def make(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
        k = d.size()
        return lambda d: (d.floats(n, m), d.index((k,), n * m, wrap))

    return make


def _along(axis: int, source: bool = False) -> Maker:
    """Indices of the shape of x but along one axis, and perhaps a source of theirs."""

    def make(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
        k = d.size()
        shape = (k, m) if axis == 0 else (n, k)
        size = n if axis == 0 else m

        def args(d: Draw) -> Arguments:
            x, i = d.floats(n, m), d.index(shape, size)
            return (x, i, d.floats(*shape)) if source else (x, i)

        return args

    return make


def _source(axis: int, rank: int = 2) -> Maker:
    """Indices of one axis, and a source with a slice for each."""

    def make(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
        k = d.size()
        if rank == 1:
            return lambda d: (d.floats(n), d.index((k,), n), d.floats(k))
        shape = (k, m) if axis == 0 else (n, k)
        return lambda d: (d.floats(n, m), d.index((k,), (n, m)[axis]), d.floats(*shape))

    return make


def _labels(*inner: int) -> Maker:
    """Scores of m classes and labels, some of them left out on purpose."""

    def make(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
        def args(d: Draw) -> Arguments:
            labels = d.index((n, *inner), m)
            if d.rng.random() < 0.5:
                first = labels.view(-1)[:1]
                first[(first >= 0) & (first < m)] = -100
            return d.floats(n, m, *inner), labels

        return args

    return make


def _divisors(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    dtype = d.rng.choice(WHOLE)
    shape = d.rng.choice([(n, m), (m,), (n, 1)])

    def args(d: Draw) -> Arguments:
        y = torch.randint(1, 9, shape, generator=d.generator()).to(dtype)
        x = torch.randint(0, 99, (n, m), generator=d.generator()).to(dtype)
        return x, d.spoil(y, [0])

    return args


def _weights(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    bad = [-1.0, float("inf"), float("nan"), -0.001]
    return lambda d: (d.spoil(d.chances(n, m) + 0.1, bad), torch.zeros(()))


def _no_weight(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    """A row without any weight."""

    def args(d: Draw) -> Arguments:
        x = d.chances(n, m) + 0.1
        if d.bad:
            x[d.rng.randrange(n)] = 0.0
            d.found.append(0.0)
        return x, torch.zeros(())

    return args


def _probabilities(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    return lambda d: (d.spoil(d.chances(n, m), [2.0, -0.5, float("nan")]), torch.zeros(()))


def _chances_first(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    """Probabilities and targets of them."""
    bad = [1.001, -0.001, float("nan"), float("inf")]
    return lambda d: (d.spoil(d.chances(n, m), bad), d.chances(n, m))


def _deviations(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    return lambda d: (d.spoil(d.chances(n, m), [-1.0, -0.25]), torch.zeros(()))


def _condition(d: Draw, n: int, m: int) -> Callable[[Draw], Arguments]:
    return lambda d: (d.floats(n, m), d.spoil(d.chances(m), [-3.0]))


def _assert(x: Tensor, y: Tensor) -> Tensor:
    torch.ops.aten._assert_async.msg((y >= 0).all(), "weights are not negative")
    return x + y


def _weighted(x: Tensor, i: Tensor) -> Tensor:
    return F.cross_entropy(x, i, torch.linspace(0.5, 2, x.shape[1]), reduction="sum")


USES = (
    Use("x[i]", lambda x, i: x[i], _rows(wrap=True, two=True)),
    Use("x[:, i]", lambda x, i: x[:, i], _columns(wrap=True)),
    Use("x[i, i]", lambda x, i: x[i % x.shape[0], i], _columns(wrap=True)),
    Use("x[i] + x[-1 - i]", lambda x, i: x[i] + x[-1 - i], _rows(wrap=True)),
    Use("embedding", lambda x, i: F.embedding(i, x), _rows(two=True)),
    Use("embedding, one", lambda x, i: F.embedding(i[0], x), _rows(least=1)),
    Use("gather 0", lambda x, i: x.gather(0, i), _along(0)),
    Use("gather 1", lambda x, i: x.gather(1, i), _along(1)),
    Use("index_select 0", lambda x, i: x.index_select(0, i), _rows()),
    Use("index_select 1", lambda x, i: x.index_select(1, i), _columns()),
    Use("take", lambda x, i: x.take(i), _flat(wrap=True)),
    Use("scatter", lambda x, i: x.scatter(0, i, 2.5), _along(0)),
    Use("scatter src", lambda x, i, s: x.scatter(1, i, s), _along(1, True), grad=False),
    Use("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), _along(0, True)),
    Use("amax", lambda x, i, s: x.scatter_reduce(1, i, s, "amax"), _along(1, True), grad=False),
    Use("index_put", lambda x, i: x.index_put((i,), x.new_tensor(1.5)), _rows(wrap=True)),
    Use(
        "index_put, added",
        lambda x, i: x.index_put((i,), x.new_tensor(1.5), True),
        _rows(wrap=True),
    ),
    Use("index_add 0", lambda x, i, s: x.index_add(0, i, s), _source(0)),
    Use("index_add 1", lambda x, i, s: x.index_add(1, i, s), _source(1)),
    Use("index_add of one axis", lambda x, i, s: x.index_add(0, i, s), _source(0, 1)),
    Use("index_copy", lambda x, i, s: x.index_copy(1, i, s * 0 + 1), _source(1)),
    Use("index_fill", lambda x, i: x.index_fill(0, i, 2.0), _rows(wrap=True)),
    Use("cross_entropy", lambda x, i: F.cross_entropy(x, i), _labels()),
    Use("cross_entropy of images", lambda x, i: F.cross_entropy(x, i), _labels(3, 2)),
    Use(
        "cross_entropy, smooth", lambda x, i: F.cross_entropy(x, i, label_smoothing=0.1), _labels()
    ),
    Use("cross_entropy, weighted", _weighted, _labels()),
    Use("nll_loss", lambda x, i: F.nll_loss(x, i, reduction="none"), _labels()),
    Use("one_hot", lambda x, i: x[0, 0] + F.one_hot(i, 40), _rows()),
    Use("//", lambda x, y: x // y, _divisors, grad=False),
    Use("%", lambda x, y: x % y, _divisors, grad=False),
    Use("fmod", torch.fmod, _divisors, grad=False),
    Use("trunc", lambda x, y: torch.div(x, y, rounding_mode="trunc"), _divisors, grad=False),
    Use("multinomial", lambda x, _: torch.multinomial(x, 1), _weights, False, True),
    Use("multinomial, two", lambda x, _: torch.multinomial(x, 2), _weights, False, True),
    Use("multinomial, again", lambda x, _: torch.multinomial(x, 9, True), _weights, False, True),
    Use("multinomial of 0", lambda x, _: torch.multinomial(x, 2, True), _no_weight, False, True),
    Use("bernoulli", lambda x, _: torch.bernoulli(x), _probabilities, False, True),
    Use("cross_entropy of chances", F.binary_cross_entropy, _chances_first),
    Use("put", lambda x, i: x.put(i, x.new_full(i.shape, 2.5)), _flat(wrap=True)),
    Use("put, added", lambda x, i: x.put(i, x.new_ones(i.shape), True), _flat(wrap=True)),
    Use("normal", lambda x, _: torch.normal(0.0, x), _deviations, False, True),
    Use("assert", _assert, _condition),
)

# What is computed of the second argument first, so that nothing changes by it.
PRODUCERS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda i: i,
    "arithmetic": lambda i: (i + 3) * 2 // 2 - 3 if i.dtype in INDICES else i * 1,
    "turned twice": lambda i: i.flip(0).flip(0) if i.dim() else i,
    "a choice": lambda i: torch.where(i == i, i, i - i),
    "a view": lambda i: i.unsqueeze(0).expand(2, *i.shape)[1],
    "by way of float64": lambda i: i.double().to(i.dtype),
}
CONSUMERS: dict[str, Callable[[Tensor], Tensor]] = {
    "as it is": lambda y: y,
    "arithmetic": lambda y: y * 2 + 1,
    "a sum": lambda y: y.sum(),
}
MODES = (
    "plain",
    "plain",
    "dynamic",
    "gradient",
    "branch",
    "other branch",
    "in place",
    "tw.compile",
)


@dataclass(frozen=True)
class Program:
    use: Use
    producer: str
    consumer: str
    mode: str
    calls: tuple[tuple[Arguments, tuple[float, ...]], ...]  # with the bad elements of each
    shape: tuple[int, ...] = ()  # of the result
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        shapes = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in self.calls[0][0])
        return f"{self.use.name}({shapes}), {self.producer}, {self.consumer}, {self.mode}"

    def __call__(self, x: Tensor, i: Tensor, *rest: Tensor) -> Tensor:
        return CONSUMERS[self.consumer](self.use.function(x, PRODUCERS[self.producer](i), *rest))


def random_program(seed: int) -> Program:
    d = Draw(random.Random(seed))
    use = d.rng.choice(USES)
    n, m = d.size(3), d.size(3)
    make = use.make(d, n, m)
    producer = d.rng.choice(list(PRODUCERS))
    mode = d.rng.choice(MODES)
    whole = use.make is _divisors and mode == "in place"
    if use.random or whole or (mode == "gradient" and not use.grad):
        mode = d.rng.choice(("plain", "dynamic"))
    calls: list[tuple[Arguments, tuple[float, ...]]] = []
    for k in range(CALLS):
        d.bad, d.found = (0 if k < 2 else d.rng.choice([1, 1, 2])), []
        calls.append((make(d), tuple(d.found)))
    p = Program(use, producer, d.rng.choice(list(CONSUMERS)), mode, tuple(calls))
    with torch.no_grad():
        y = p(*calls[0][0])
    return replace(p, shape=tuple(y.shape), dtype=y.dtype)


def _function(p: Program) -> Callable[..., Any]:
    """The program as its mode calls it."""
    if p.mode == "in place":

        def changes(x: Tensor, *rest: Tensor) -> Any:
            x.add_(0.5)
            return p(x, *rest)

        return changes
    if p.mode not in ("branch", "other branch"):
        return p.__call__

    def branch(x: Tensor, *rest: Tensor) -> Any:
        # What the branch that does not run would refuse does not matter.
        total = x.sum()
        always = (total == total) | total.isnan()  # whatever the bad elements are
        taken = always if p.mode == "branch" else ~always
        return torch.cond(taken, lambda *a: p(*a), lambda *_: _zeros(p), (x, *rest))

    return branch


def _zeros(p: Program) -> Tensor:
    return torch.zeros(p.shape, dtype=p.dtype)


def _taken(p: Program) -> Callable[..., Any]:
    """The branch that runs."""
    return p.__call__ if p.mode == "branch" else lambda *_: _zeros(p)


@dataclass(frozen=True)
class Outcome:
    error: type[BaseException] | None
    words: str
    values: tuple[Tensor, ...] = ()


def outcome(run: Callable[..., Any], args: Arguments, gradient: bool) -> Outcome:
    given = [a.clone() for a in args]
    try:
        if not gradient:
            with torch.no_grad():
                return Outcome(None, "", (run(*given).clone(),))
        given[0].requires_grad_()
        y = run(*given)
        y.float().square().sum().backward()
        return Outcome(None, "", (y.detach(), given[0].grad))  # type: ignore[arg-type]
    except (IndexError, RuntimeError) as problem:
        return Outcome(type(problem), str(problem), (given[0].detach(),))


def _normal(words: str, several: bool) -> str:
    """Eager's words without what is added to them, or which of several bad elements came first."""
    words = words.split("\n  at ")[0].split("\nException raised")[0].strip()
    words = words.split("\n\nCall using an FX-traced")[0]
    words = words.removeprefix("one_hot: ")  # torch names it in graphs, and not in eager
    if not several:
        return words
    words = re.sub(r"(index|Target|id=) ?-?\d+", r"\1 #", words)
    return re.sub(r"(probability entry) (< 0|= infinity or NaN)", r"\1 #", words)


def fault(p: Program) -> str | None:
    """How a compiled program differs from eager, if it does."""
    torch._dynamo.reset()
    # Eager compiles torch.cond, too, and reports what it refuses at length.
    function = _function(p)
    plain = _taken(p) if "branch" in p.mode else function
    gradient = p.mode == "gradient"
    if p.mode == "tw.compile":
        fast: Callable[..., Any] = tw.compile(function)
    else:
        dynamic = p.mode == "dynamic" or None
        fast = torch.compile(function, backend="tilewright", dynamic=dynamic)
    try:
        for args, bad in p.calls:
            eager = outcome(plain, args, gradient)
            ours = outcome(fast, args, gradient)
            if found := _difference(p, args, ours, eager, len(set(bad)) > 1):
                return f"{found}; bad elements: {list(bad)}"
    except Exception as problem:  # reported with the program that shows it
        return f"{type(problem).__name__}: {problem}"
    return None


def _difference(
    p: Program, args: Arguments, ours: Outcome, eager: Outcome, several: bool
) -> str | None:
    if ours.error is not eager.error:
        kinds = [o.error.__name__ if o.error else "a result" for o in (ours, eager)]
        return f"gives {kinds[0]} for eager's {kinds[1]} ({ours.words or eager.words})"
    if eager.error is not None:
        if not torch.allclose(ours.values[0].double(), args[0].double(), 0, 0, equal_nan=True):
            return "has changed an input before it raised"
        a, b = _normal(ours.words, several), _normal(eager.words, several)
        return None if a == b else f"says {a!r} for {b!r}"
    for a, b in zip(ours.values, eager.values, strict=True):
        if a.dtype is not b.dtype or a.shape != b.shape:
            return f"gives {a.dtype} {tuple(a.shape)} for {b.dtype} {tuple(b.shape)}"
        close = torch.allclose(a.double(), b.double(), rtol=2e-2, atol=2e-2, equal_nan=True)
        exact = a.dtype.is_floating_point or torch.equal(a, b)
        if not p.use.random and not (close and exact):
            return "gives other values"
    return None


def check_seed(seed: int) -> None:
    """Raises with the program that fails."""
    program = random_program(seed)
    problem = fault(program)
    if problem is not None:
        raise AssertionError(f"seed {seed}: {program}: {problem}")


GENERATOR = checked("hostile", check_seed)

if __name__ == "__main__":
    raise SystemExit(run_seeds(check_seed, "programs", 100, __doc__))
