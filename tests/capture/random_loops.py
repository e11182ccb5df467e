"""Random loops of Python: one step traced for all, against eager.

python -m tests.capture.random_loops --count 300 [--first SEED]

Most programs are traced by Dynamo only, and its graph runs in eager; some are compiled. Every
program is called with several arguments; results, gradients, changed arguments and errors are
compared.
"""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import tilewright as tw
from tests.capture.loop_features import FEATURES, state
from tests.capture.loop_maker import LoopProgram, Maker
from tests.generators import Failure, Generator, skipped
from tests.seeds import run_generator
from tests.shrinking import error
from tilewright.capture.torch.joined_steps import join_steps
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions

CALLS = 2


class Counting(nn.Module):
    """Changes a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * (1 + 0.1 * (self.count % 5))


class Keeping(nn.Module):
    """Changes a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3, 4).double())

    def forward(self, x: Tensor) -> Tensor:
        self.count = torch.sin(self.count + x)
        return x * self.count


class Traced(Session):
    """Runs what Dynamo captured as it is."""

    def __init__(self) -> None:
        super().__init__(TorchOptions())

    def backend(self, gm: torch.fx.GraphModule, _: Sequence[Any], **__: Any) -> Callable[..., Any]:
        join_steps(gm)
        return gm.forward


def random_loop(seed: int) -> LoopProgram:
    """The program of a seed."""
    m = Maker(seed)
    state(m)
    functions, weights = zip(*FEATURES, strict=True)
    for _ in range(m.r.choice((0, 1, 1, 1, 2, 2, 3))):
        m.r.choices(functions, weights)[0](m)
    return m.made(seed)


def loaded(p: LoopProgram) -> Callable[..., Any]:
    """The function, in a module of its own."""
    source = p.source()
    name = f"<loop {p.seed}: {zlib.crc32(source.encode())}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    label = f"drawn_loop_{zlib.crc32(source.encode())}"
    sys.modules[label] = module = ModuleType(label)
    scope = vars(module)
    scope |= {"torch": torch, "nn": nn, "F": F, "itertools": itertools}
    scope |= {"Counting": Counting, "Keeping": Keeping}
    exec(compile(source, name, "exec"), scope)
    return scope["program"]


def arguments(p: LoopProgram, call: int) -> tuple[Any, ...]:
    drawn = torch.Generator().manual_seed(1000 * p.seed % 2**40 + call)
    sizes = ((3, 20, 4), (20, 3, 4), (4, 4))
    made = [torch.randn(s, generator=drawn, dtype=torch.float64) * 0.7 for s in sizes]
    return *(x.requires_grad_(p.grad) for x in made), [0.5]


def outcome(function: Callable[..., Any], p: LoopProgram, call: int) -> Any:
    """What a call gives and changes, or its error."""
    given = arguments(p, call)
    torch.manual_seed(7)
    try:
        results = function(*given)
        found = {"results": results, "arguments": given}
        if p.grad:
            found["gradients"] = gradients(results, given)
        leaves = pytree.tree_leaves(found)
        return [x.detach().clone() if isinstance(x, Tensor) else x for x in leaves]
    except Exception as problem:
        return problem


def gradients(results: Any, given: Any) -> Any:
    leaves = pytree.tree_leaves((results, given[3]))
    every = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    if not every:
        return None
    weights = [
        torch.linspace(0.5, 1.5, x.numel(), dtype=torch.float64).view(x.shape) for x in every
    ]
    weights = [w.to(x.dtype) for w, x in zip(weights, every, strict=True)]
    wanted = [x for x in given[:3] if x.requires_grad]
    return torch.autograd.grad(every, wanted, weights, materialize_grads=True)


def traced(p: LoopProgram, ours: bool) -> list[Any]:
    torch._dynamo.reset()
    made, dynamic = loaded(p), True if p.dynamic else None
    if p.native and ours:
        fast: Any = tw.compile(made, dynamic=dynamic)
    else:
        backend: Any = Traced().backend if ours else "eager"
        fast = torch.compile(made, backend=backend, dynamic=dynamic)
    return [outcome(fast, p, call) for call in range(CALLS)]


def failure(p: LoopProgram) -> Failure | None:
    try:
        made = loaded(p)
    except SyntaxError as problem:
        return skipped("no program", str(problem))
    right = [outcome(made, p, call) for call in range(CALLS)]
    if all(isinstance(x, (NameError, TypeError, AttributeError)) for x in right):
        return skipped("eager refuses them", str(right[0]))
    if any("modified by an inplace operation" in str(x) for x in right):
        return skipped("eager has no gradient of them", str(right[0]))
    found = different(traced(p, True), right)
    if found is not None and found.what == "error" and not p.native:
        # Torch's scan has no gradient beside whole numbers; such graphs are traced again.
        found = different(traced(replace(p, native=True), True), right)
    if found is None:
        return None
    theirs = traced(p, False)
    if different(theirs, right) is not None:
        return skipped("torch's own trace differs from eager", f"{found}\n{p.source()}")
    return found


def different(got: list[Any], right: list[Any]) -> Failure | None:
    for call, (a, b) in enumerate(zip(got, right, strict=True)):
        if isinstance(a, Exception) and isinstance(b, Exception):
            continue
        if isinstance(a, Exception):
            return error(_cause(a))
        if isinstance(b, Exception):
            return Failure("no error", f"call {call}: eager says {type(b).__name__}: {b}")
        if len(a) != len(b):
            return Failure("other results", f"call {call}: {len(a)} values, not {len(b)}")
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            why = _why(x, y)
            if why:
                return Failure("wrong", f"call {call}, value {k} of {len(b)}: {why}")
    return None


def _why(x: Any, y: Any) -> str | None:
    if isinstance(x, Tensor) != isinstance(y, Tensor):
        return f"{x!r}, not {y!r}"
    if not isinstance(x, Tensor):
        same = type(x) is type(y) and (x == y or x != x) and repr(x) == repr(y)
        return None if same else f"{x!r}, not {y!r}"
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return f"{x.dtype}{list(x.shape)}, not {y.dtype}{list(y.shape)}"
    if torch.allclose(x, y, 1e-5, 1e-7 if x.dtype != torch.float32 else 1e-5, equal_nan=True):
        return None
    return (
        f"differs by {float((x.double() - y.double()).abs().max()):.3g}"
        if not x.is_complex()
        else "differs"
    )


def _cause(problem: BaseException) -> BaseException:
    inner = getattr(problem, "inner_exception", None) or problem.__cause__
    return _cause(inner) if isinstance(inner, BaseException) else problem


# ---- smaller ones


def smaller(p: LoopProgram) -> Iterator[LoopProgram]:
    if p.native:
        yield replace(p, native=False)
    if p.dynamic:
        yield replace(p, dynamic=False)
    if p.grad:
        yield replace(p, grad=False)
    if len(p.results) > 1:
        yield from (replace(p, results=(x,)) for x in p.results)
    for part in ("body", "after", "before", "outside"):
        lines = getattr(p, part)
        for k in range(len(lines)):
            less: dict[str, Any] = {part: (*lines[:k], *lines[k + 1 :])}
            yield replace(p, **less)
    if p.head != "for t in range(20):":
        yield replace(p, head="for t in range(20):")
    for k, text in enumerate(p.body):
        for plain in ("h0", "x[:, t]"):
            for found in dict.fromkeys(
                re.findall(r"torch\.\w+\([^()]*\)|\([^()]*\)\.\w+\([^()]*\)", text)
            ):
                body = (*p.body[:k], text.replace(found, plain), *p.body[k + 1 :])
                if body != p.body:
                    yield replace(p, body=body)


def as_code(p: LoopProgram) -> str:
    quoted = "".join(f"# {line}".rstrip() + "\n" for line in p.source().splitlines())
    return (
        "from tests.capture.loop_maker import LoopProgram\n"
        "from tests.capture.random_loops import GENERATOR\n"
        "from tests.generators import reproduce\n\n"
        f"{quoted}\nreproduce(GENERATOR, {p!r})\n"
    )


def about(p: LoopProgram) -> str:
    words = re.findall(r"(?:torch|F|nn)\.\w+|\.\w+(?=\()", "\n".join(p.body))
    return " ".join(sorted({w.strip(".") for w in words}))


def check_seed(seed: int) -> None:
    p = random_loop(seed)
    found = failure(p)
    if found is not None and not found.skipped:
        raise AssertionError(f"seed {seed}: {found}\n{p.source()}")


def prepare() -> None:
    """Everything that a first compilation imports, without running anything of ours."""
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))


GENERATOR = Generator("python-loops", random_loop, failure, smaller, as_code, about, prepare)

if __name__ == "__main__":
    raise SystemExit(run_generator("python-loops", 300, __doc__))
