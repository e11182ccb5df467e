"""Random chains of 16-bit operators through torch.compile, bit by bit against eager.

python -m tests.driver.random_halves --count 100 [--first SEED]

Chains consist of operators whose result in 16 bits is a matter of definition: sums, products,
quotients, roots, choices, casts. All of a chain is fused, and the results have to be eager's bits.
At the end may stand an operator that approximates (within one unit in the last place of eager's
result or of the exact one) or a sum (in another order, in float32).

Eager itself has two answers for some operators: whole vectors go through other code than the
elements left over at the end of a row, and than strided operands. The judge takes the answer of
whole vectors for every element.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.generators import checked
from tests.seeds import run_seeds

HALVES = (torch.float16, torch.bfloat16)

# Of one operand, all exactly what eager gives.
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "{0} + 0.1": lambda x: x + 0.1,
    "{0} + 100 - 100": lambda x: x + 100 - 100,
    "{0} * 3": lambda x: x * 3,
    "{0} * 0.3": lambda x: x * 0.3,
    "{0} / 0.7": lambda x: x / 0.7,
    "2 - {0}": lambda x: 2 - x,
    "1.5 / {0}": lambda x: 1.5 / x,
    "-{0}": torch.neg,
    "abs({0})": torch.abs,
    "sqrt(abs({0}))": lambda x: x.abs().sqrt(),
    "reciprocal({0})": torch.reciprocal,
    "square({0})": torch.square,
    "{0} ** 3": lambda x: x**3,
    "relu({0})": torch.relu,
    "leaky_relu({0})": lambda x: F.leaky_relu(x, 0.1),
    "hardtanh({0})": F.hardtanh,
    "hardswish({0})": F.hardswish,
    "hardshrink({0})": F.hardshrink,
    "softshrink({0})": F.softshrink,
    "clamp({0}, -0.7, 0.3)": lambda x: x.clamp(-0.7, 0.3),
    "floor({0})": torch.floor,
    "frac({0})": torch.frac,
    "{0} > 0.1 ? {0} : 0.1": lambda x: torch.where(x > 0.1, x, 0.1),
    "{0}.float() * 1.1": lambda x: (x.float() * 1.1).to(x.dtype),
    "{0}.double() + 0.1": lambda x: (x.double() + 0.1).float().to(x.dtype),
    "{0}.to(float16)": lambda x: x.to(torch.float16),
    "{0}.to(bfloat16)": lambda x: x.to(torch.bfloat16),
    "{0}.T.contiguous().T": lambda x: x.t().contiguous().t(),
    "amax({0})": lambda x: x.amax(-1, keepdim=True),
    "{0}[:, :1]": lambda x: x[:, :1],
}
# These look at positions, so they are judged as they are.
SHAPED = {"{0}.T.contiguous().T", "amax({0})", "{0}[:, :1]"}
VECTORS = 256  # elements: a multiple of the vectors of every processor
PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "{0} + {1}": torch.add,
    "{0} - {1}": torch.sub,
    "{0} * {1}": torch.mul,
    "{0} / {1}": torch.div,
    "add({0}, {1}, alpha=0.3)": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub({0}, {1}, alpha=0.3)": lambda x, y: torch.sub(x, y, alpha=0.3),
    "maximum({0}, {1})": torch.maximum,
    "where({0} > {1})": lambda x, y: torch.where(x > y, x, y),
    "{0} * {1} + {0}": lambda x, y: x * y + x,
    "addcmul({0}, {1}, {1})": lambda x, y: torch.addcmul(x, y, y),
    "lerp({0}, {1}, 0.3)": lambda x, y: torch.lerp(x, y, 0.3),
    "mse({0}, {1})": lambda x, y: F.mse_loss(x, y, reduction="none"),
}
# At the end: within a unit in the last place, or a sum in another order.
NEAR: dict[str, Callable[[Tensor], Tensor]] = {
    "exp({0})": torch.exp,
    "tanh({0})": torch.tanh,
    "sigmoid({0})": torch.sigmoid,
    "silu({0})": F.silu,
    "gelu({0})": F.gelu,
    "rsqrt(abs({0}))": lambda x: x.abs().rsqrt(),
    "log1p(abs({0}))": lambda x: x.abs().log1p(),
    "sin({0})": torch.sin,
    "erf({0})": torch.erf,
    "softmax({0})": lambda x: x.softmax(-1),
    "sum(abs({0}))": lambda x: x.abs().sum(-1),
    "mean(square({0}))": lambda x: x.square().mean(-1),
}
ELEMENTWISE = {text for text in NEAR if not text.startswith(("softmax", "sum", "mean"))}


def _in_vectors(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An elementwise function in eager, with operands that are dense and fill whole vectors."""

    def apply(*operands: Tensor) -> Tensor:
        dense = torch.broadcast_tensors(*operands)
        count = dense[0].numel()
        padded = [F.pad(x.reshape(-1), (0, -count % VECTORS), value=1.0) for x in dense]
        return f(*padded)[:count].reshape(dense[0].shape)

    return apply


@dataclass(frozen=True)
class Chain:
    seed: int
    inputs: tuple[Tensor, ...]
    calls: tuple[tuple[str, Callable[..., Tensor], tuple[int, ...]], ...]
    last: tuple[str, Callable[[Tensor], Tensor]] | None

    def __call__(self, *inputs: Tensor) -> Tensor:
        values = list(inputs)
        for _, f, operands in self.calls:
            values.append(f(*(values[k] for k in operands)))
        return values[-1] if self.last is None else self.last[1](values[-1])

    def expected(self) -> tuple[Tensor, ...]:
        """Eager's result; of a last operator that approximates also the exact one. Eager's own
        approximations may be far off: its erf of 1e-7 is 0 on some processors."""
        values = list(self.inputs)
        for text, f, operands in self.calls:
            apply = f if text in SHAPED else _in_vectors(f)
            values.append(apply(*(values[k] for k in operands)))
        x = values[-1]
        if self.last is None:
            return (x,)
        text, f = self.last
        if text not in ELEMENTWISE:
            return (f(x),)
        return _in_vectors(f)(x), f(x.double()).to(x.dtype)

    def __str__(self) -> str:
        lines = [f"v{k}: {x.dtype}{list(x.shape)}" for k, x in enumerate(self.inputs)]
        for k, (text, _, operands) in enumerate(self.calls, len(self.inputs)):
            lines.append(f"v{k} = {text.format(*(f'v{j}' for j in operands))}")
        if self.last is not None:
            lines.append(f"return {self.last[0].format('v' + str(len(lines) - 1))}")
        return "\n".join(lines)


def chain(seed: int, length: int | None = None) -> Chain:
    """The chain of a seed, or its first calls."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    shape = rng.choice([(3, 5), (4, 16), (7, 33), (2, 64), (1, 8)])
    dtype = rng.choice(HALVES)
    inputs = []
    for _ in range(rng.randrange(1, 4)):
        x = torch.randn(shape, generator=generator) * rng.choice([0.01, 1.0, 1.0, 30.0])
        inputs.append(x.to(dtype if rng.random() < 0.8 else rng.choice(HALVES)))
    calls: list[tuple[str, Callable[..., Tensor], tuple[int, ...]]] = []
    count = len(inputs)
    for _ in range(rng.choice([2, 3, 4, 6, 9])):
        newest = count - 1
        if rng.random() < 0.45:
            text = rng.choice(list(PAIRS))
            operands = (newest, rng.randrange(count))
            # lerp and friends want one dtype.
            f = PAIRS[text]
            calls.append((text, _alike(f), operands if rng.random() < 0.7 else operands[::-1]))
        else:
            text = rng.choice(list(EXACT))
            calls.append((text, EXACT[text], (newest,)))
        count += 1
    near = rng.choice(list(NEAR))
    last = (near, NEAR[near]) if rng.random() < 0.35 else None
    if length is not None:
        calls, last = calls[:length], None
    return Chain(seed, tuple(inputs), tuple(calls), last)


def _alike(f: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The second operand in the dtype of the first."""
    return lambda x, y: f(x, y.to(x.dtype))


def fault(c: Chain) -> str | None:
    """How a compiled chain differs from eager, or None."""
    torch._dynamo.reset()
    want, *others = c.expected()
    got = torch.compile(c.__call__, backend="tilewright", fullgraph=True)(*c.inputs)
    if got.dtype is not want.dtype or got.shape != want.shape:
        return f"is {got.dtype}{list(got.shape)} and {want.dtype}{list(want.shape)} in eager"
    allowed = 0 if c.last is None else 1
    off = _apart(got, want)
    for right in others:
        off = torch.minimum(off, _apart(got, right))
    if int(off.max()) <= allowed:
        return None
    at = int(off.flatten().argmax())
    return (
        f"is {got.flatten()[at].item()!r} at {at} and {want.flatten()[at].item()!r} in eager "
        f"({int((off > allowed).sum())} of {off.numel()} differ)"
    )


def _apart(x: Tensor, y: Tensor) -> Tensor:
    """How many floats lie between two, element by element."""
    off = (_order(x) - _order(y)).abs()
    return torch.where(x.isnan() & y.isnan(), torch.zeros_like(off), off)


def _order(x: Tensor) -> Tensor:
    """Floats as integers in the same order; both zeros are 0."""
    x = x.contiguous()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    i = x.view(bits).to(torch.int64)
    return torch.where(i < 0, -(i & ((1 << (8 * x.element_size() - 1)) - 1)), i)


def check_seed(seed: int) -> None:
    """Raises with the fewest calls that still fail."""
    c = chain(seed)
    problem = fault(c)
    if problem is None:
        return
    for n in range(1, len(c.calls) + 1):
        shorter = chain(seed, n)
        found = fault(shorter)
        if found is not None:
            raise AssertionError(f"seed {seed}: {found}\n{shorter}")
    raise AssertionError(f"seed {seed}: {problem}\n{c}")


GENERATOR = checked("halves", check_seed)

if __name__ == "__main__":
    raise SystemExit(run_seeds(check_seed, "chains", 200, __doc__))
