"""Random PyTorch functions, called several times in a row, against eager.

python -m tests.driver.random_calls --count 100 [--first SEED]

What changes from call to call is what this is about: Python numbers, sizes, layouts, tensors that
share memory or are given twice, in-place changes of inputs, results that are views of inputs,
numbers read from data, checkpoints, gradients. A draw is Python source: a function `f` and one
function per call that makes its arguments. `source(seed)` is that text with a main part, so a
failing draw can be saved as a file and run.

A draw is right when every call gives eager's results (values by the rule of
`tilewright.bench.oracle`, dtypes, strides, which results share memory with which arguments), leaves
the same in its arguments, and has the same gradients.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.driver.call_statements import STATEMENTS
from tests.generators import Skipped, checked
from tests.seeds import run_seeds
from tilewright.bench.oracle import InDouble, disagreements

PRELUDE = """\
import dataclasses, math, warnings
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Pair:
    first: object
    second: object


def tensor(seed, shape, dtype):
    # Multiples of 1/8, which every float dtype holds exactly.
    x = torch.randint(-24, 25, shape, generator=torch.Generator().manual_seed(seed))
    if dtype == torch.bool:
        return x > 0
    return (x / 8 if dtype.is_floating_point else x // 3).to(dtype)


"""

MAIN = """

if __name__ == "__main__":
    from tests.driver.random_calls import Draw, fault

    print(fault(Draw({seed}, open(__file__).read(), {options!r}, {config!r}, {dynamic!r})))
"""

FLOATS = ("float32", "float32", "float64", "bfloat16", "float16")
WHOLE = ("int64", "int32", "int8", "uint8", "int16")
SIZES = (0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 8)
# An operand larger than this rounds too coarsely in half precision to be compared.
LARGEST = 100.0


@dataclass(frozen=True)
class Draw:
    """One random test: its source, and how it is compiled."""

    seed: int
    text: str
    options: dict[str, Any]
    config: dict[str, Any]  # of Dynamo
    dynamic: bool | None

    def module(self) -> dict[str, Any]:
        return _executed(self.text, f"draw{self.seed}")

    def calls(self, scope: dict[str, Any]) -> list[Callable[[], Any]]:
        return [v for k, v in scope.items() if k.startswith("call")]


def _executed(text: str, name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    sys.modules[name] = module  # where dataclasses and Dynamo look it up
    exec(compile(text, f"<{name}>", "exec"), module.__dict__)
    return module.__dict__


# ---- what a draw is made of


class _Maker:
    """Grows a function statement by statement; one that eager refuses in some call is dropped."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = r = random.Random(seed)
        self.kinds = r.sample(list(STATEMENTS), r.randint(1, 3))
        self.data = "data" in self.kinds
        self.checkpointed = r.random() < 0.12 and not self.data
        self.grad = r.random() < (0.9 if self.checkpointed else 0.4)
        self.lines: list[str] = []
        self.names = 0
        self.float_args: list[str] = []
        self.whole_args: list[str] = []
        self.smooth: list[str] = []
        self.whole: list[str] = []
        self.numbers: list[str] = []
        self.calls: list[list[str]] = []
        self.parameters: list[str] = []

    def draw(self) -> Draw:
        r = self.random
        self._arguments()
        for _ in range(r.randint(2, 9)):
            before = len(self.lines)
            kind = r.choice(self.kinds) if r.random() < 0.75 else "plain"
            STATEMENTS[kind](self)
            if len(self.lines) > before and not self._runs():
                del self.lines[before:]
                self._forget()
        text = PRELUDE + self._function() + self._calls()
        options = {"random": "eager"} if "dropout" in text else {}
        config = (
            {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
            if self.data and r.random() < 0.8
            else {}
        )
        if r.random() < 0.15:
            config["specialize_float"] = True
        dynamic = r.choice((None, None, None, True, False))
        text += MAIN.format(seed=self.seed, options=options, config=config, dynamic=dynamic)
        return Draw(self.seed, text, options, config, dynamic)

    # ---- arguments: the same names in every call, other numbers and sizes

    def _arguments(self) -> None:
        r = self.random
        dtype, whole = r.choice(FLOATS), r.choice(WHOLE)
        rank, count = r.choice((0, 1, 1, 2, 2, 2, 3)), r.randint(2, 4)
        vary = r.random() < 0.5
        shape = [r.choice(SIZES) for _ in range(rank)]
        layout = r.choice(list(_LAYOUTS))
        shares = r.choice(("no", "no", "no", *_SHARING))
        self.parameters = ["x", "y", "w"]
        numbers = [n for n in ("n", "k", "s", "b") if r.random() < 0.6] or ["n"]
        if not set(self.kinds) & {"scalars", "whole"} and r.random() < 0.5:
            numbers = []
        fixed = {n: r.random() < 0.25 for n in numbers}
        values: dict[str, Any] = {}
        for c in range(count):
            if vary and c:
                shape = [r.choice(SIZES) if r.random() < 0.5 else d for d in shape]
            grad = self.grad and r.random() < 0.9
            lines = [f"x = {_LAYOUTS[layout](self, shape, dtype)}"]
            lines += _SHARING[shares](shape) if shares != "no" else []
            if len(lines) == 1:
                lines.append(f"y = tensor({r.randrange(99)}, {tuple(shape)}, torch.{dtype})")
            lines.append(f"w = tensor({r.randrange(99)}, {tuple(shape)}, torch.{whole})")
            leaves: list[str] = []
            if grad:
                leaves = ["x"] if shares != "no" else r.choice((["x"], ["x", "y"]))
                # An input that is changed in place must not be a leaf.
                lines = [lines[0], *(_leaf(v) for v in leaves if v == "x"), *lines[1:]]
                lines += [_leaf(v) for v in leaves if v == "y"]
            lines.append(f"leaves = [{', '.join(f'{v}_leaf' for v in leaves)}]")
            for n in numbers:
                if n not in values or not fixed[n]:
                    values[n] = _number(r, n)
                lines.append(f"{n} = {values[n]}")
            order = ", ".join([*self.parameters, *numbers])
            self.calls.append([*lines, f"return ({order},), leaves"])
        self.parameters += numbers
        self.float_args, self.whole_args = ["x", "y"], ["w"]
        self.smooth, self.whole, self.numbers = ["x", "y"], ["w"], list(numbers)

    # ---- statements

    def fresh(self) -> str:
        self.names += 1
        return f"v{self.names}"

    def put(self, text: str, pool: list[str] | None) -> None:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        if pool is not None:
            pool.append(name)

    def one(self, pool: list[str]) -> str:
        return self.random.choice(pool[-4:] if self.random.random() < 0.7 else pool)

    def number(self) -> str:
        if self.numbers and self.random.random() < 0.8:
            return self.random.choice(self.numbers)
        return str(self.random.choice((0, 1, 2, 3, -1, 0.5)))

    def pick(self, *texts: str) -> str:
        """One of the texts, with operands put in: {x} {y} floats, {w} {z} whole, {n} {k} numbers,
        {a} a float argument, {i} a whole argument."""
        text = self.random.choice(texts)
        return text.format(
            x=self.one(self.smooth),
            y=self.one(self.smooth),
            w=self.one(self.whole),
            z=self.one(self.whole),
            n=self.number(),
            k=self.number(),
            a=self.random.choice(self.float_args),
            i=self.random.choice(self.whole_args),
        )

    def _forget(self) -> None:
        known = {line.split(" = ")[0] for line in self.lines} | set(self.parameters)
        for pool in (self.smooth, self.whole, self.numbers):
            pool[:] = [v for v in pool if v in known]

    def _runs(self) -> bool:
        """Does eager take the statements in every call, with moderate results?"""
        known = _executed(PRELUDE + self._calls(), "growing")
        for c in range(len(self.calls)):
            args, _ = known[f"call{c}"]()
            scope = {**known, **dict(zip(self.parameters, args, strict=True))}
            try:
                exec("\n".join(self.lines), scope)
            except Exception:  # whatever eager does not like is not drawn
                return False
            made = [scope[v] for v in (*self.parameters, *self.smooth, *self.whole)]
            for v in pytree.tree_leaves(made):
                if isinstance(v, torch.Tensor) and not _moderate(v):
                    return False
        return True

    # ---- text

    def _function(self) -> str:
        r = self.random
        made = [v for v in self.smooth + self.whole if v.startswith("v")]
        given = [v for v in self.smooth + self.whole if not v.startswith("v")]
        results = r.sample(made, min(len(made), r.randint(1, 4)))
        if not results or r.random() < 0.3:
            results.append(r.choice(given))
        if r.random() < 0.15:
            results.append(results[0])
        if self.numbers and r.random() < 0.2:
            results.append(r.choice(self.numbers))
        if r.random() < 0.1:
            results.append("None")
        if r.random() < 0.05:
            results = []
        if r.random() < 0.03:
            results = results * 60
        listed = "".join(f"{v}, " for v in results)
        forms = [f"({listed})", f"[{listed}]", f"{{'r': ({listed}), 's': [{results[:1]}]}}"]
        forms = forms[:2] + [
            "{" + ", ".join(f"'r{k}': {v}" for k, v in enumerate(results)) + "}",
        ]
        if len(results) == 2:
            forms.append(f"Pair({listed})")
        if len(results) == 1:
            forms += [results[0]] * 3
        back = r.choice(forms) if results else "None"
        lines = self.lines or ["pass"]
        parameters = ", ".join(self.parameters)
        body = "".join(f"    {line}\n" for line in lines)
        if not self.checkpointed:
            return f"def f({parameters}):\n{body}    return {back}\n"
        reentrant = r.random() < 0.4
        if reentrant:  # torch asks for a tuple or a tensor there
            back = f"({listed})"
        return (
            f"def body({parameters}):\n{body}    return {back}\n\n\n"
            f"def f({parameters}):\n"
            f"    return checkpoint(body, {parameters}, use_reentrant={reentrant})\n"
        )

    def _calls_text(self) -> Iterator[str]:
        for c, lines in enumerate(self.calls):
            yield f"\n\ndef call{c}():\n" + "".join(f"    {line}\n" for line in lines)

    def _calls(self) -> str:
        return "".join(self._calls_text())


def _leaf(v: str) -> str:
    return f"{v}_leaf = {v}.detach().requires_grad_(); {v} = {v}_leaf * 1"


def _number(r: random.Random, name: str) -> Any:
    if name == "s":
        return r.choice((0.5, 1.0, 2.0, -1.5, 0.25, 3.0))
    if name == "b":
        return r.random() < 0.5
    return r.choice((1, 2, 3, 4, 5, 7) if name == "k" else (0, 1, 2, 3, 4, 6, 9, -1, -2))


def _moderate(v: torch.Tensor) -> bool:
    if v.is_complex() or v.numel() > 4096:
        return False
    if not v.is_floating_point():
        return True
    return not v.numel() or bool((v.detach().abs() < LARGEST).all())


def _tensor(m: _Maker, shape: list[int], dtype: str) -> str:
    return f"tensor({m.random.randrange(99)}, {tuple(shape)}, torch.{dtype})"


def _transposed(m: _Maker, shape: list[int], dtype: str) -> str:
    return f"{_tensor(m, shape[::-1], dtype)}.permute({list(range(len(shape)))[::-1]})"


def _with_gaps(m: _Maker, shape: list[int], dtype: str) -> str:
    return f"{_tensor(m, [2 * d + 1 for d in shape], dtype)}[{'1::2, ' * len(shape)}...]"


def _expanded(m: _Maker, shape: list[int], dtype: str) -> str:
    return f"{_tensor(m, [1, *shape[1:]] if shape else [], dtype)}.expand({tuple(shape)})"


def _offset(m: _Maker, shape: list[int], dtype: str) -> str:
    return f"{_tensor(m, [3, *shape], dtype)}[1]"


_LAYOUTS: dict[str, Callable[[_Maker, list[int], str], str]] = {
    "plain": _tensor,
    "transposed": _transposed,
    "gaps": _with_gaps,
    "expanded": _expanded,
    "offset": _offset,
    "plain again": _tensor,
}

# How y comes from x: tensors that share memory.
_SHARING: dict[str, Callable[[list[int]], list[str]]] = {
    "twice": lambda shape: ["y = x"],
    "tail": lambda shape: ["y = x[1:]" if shape and shape[0] > 1 else "y = x.view_as(x)"],
    "transpose": lambda shape: ["y = x.mT" if len(shape) > 1 else "y = x.detach()"],
    "overlap": lambda shape: ["y = x.reshape(-1).unfold(0, 2, 1) if x.numel() > 1 else x[...]"],
    "same storage": lambda shape: ["x, y = torch.stack((x, x)).unbind(0)"],
}


def draw(seed: int) -> Draw:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Maker(seed).draw()


def source(seed: int) -> str:
    """The draw as a program: `python FILE` from the root of the repository prints what is wrong."""
    return draw(seed).text


# ---- judging


@dataclass(frozen=True)
class Seen:
    """What a call did, as far as a program can tell."""

    results: Any
    arguments: list[Any]
    gradients: list[Any]
    facts: list[str]  # structure, strides, sharing
    error: str | None = None


def _observe(f: Callable, make: Callable[[], Any]) -> Seen:
    args, leaves = make()
    torch.manual_seed(0)
    out = f(*args)
    out_leaves, spec = pytree.tree_flatten(_as_tuples(out))
    given = list(args)
    facts = [str(spec)]
    tensors = [(f"argument {k}", v) for k, v in enumerate(given)]
    tensors += [(f"result {k}", v) for k, v in enumerate(out_leaves)]
    tensors = [(name, v) for name, v in tensors if isinstance(v, torch.Tensor)]
    for j, (name, v) in enumerate(tensors):
        stride = [s for s, n in zip(v.stride(), v.shape, strict=True) if n > 1 and v.numel()]
        facts.append(f"{name} has strides {stride}, requires_grad={v.requires_grad}")
        for other, u in tensors[:j] if len(tensors) < 30 else []:
            if v is u and v.numel():
                facts.append(f"{name} is {other}")
            elif v.numel() and v.untyped_storage()._cdata == u.untyped_storage()._cdata:
                apart = v.storage_offset() - u.storage_offset()
                facts.append(f"{name} lies in {other}'s memory, {apart} elements after it")
    copies = pytree.tree_map(_copied, out_leaves), pytree.tree_map(_copied, given)
    gradients: list[Any] = []
    roots = [v for v in out_leaves if isinstance(v, torch.Tensor) and v.requires_grad]
    roots += [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad]
    if leaves and roots:
        total = sum((v.double() * (1 + k % 3)).sum() for k, v in enumerate(roots))
        assert isinstance(total, torch.Tensor)
        total.backward()
        gradients = [v.grad for v in leaves]
        facts.append(f"gradients {[g is None for g in gradients]}")
        gradients = [torch.zeros(()) if g is None else g for g in gradients]
    return Seen(*copies, gradients, facts)


def _copied(v: Any) -> Any:
    return v.detach().clone() if isinstance(v, torch.Tensor) else v


def _as_tuples(x: Any) -> Any:
    """Dataclasses as tuples: pytrees do not look into them."""
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return tuple(getattr(x, f.name) for f in dataclasses.fields(x))
    return x


def _in_double(f: Callable, make: Callable[[], Any]) -> Seen:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble():
            return _observe(f, make)
    finally:
        torch.set_default_dtype(before)


def _sequence(d: Draw, wrap: Callable[[Callable], Callable]) -> list[Seen]:
    scope = d.module()
    f = wrap(scope["f"])
    out = []
    for make in d.calls(scope):
        out.append(_observe(f, make))
    return out


def _compiled(d: Draw, backend: str) -> list[Seen]:
    torch._dynamo.reset()
    options: Any = d.options if backend == "tilewright" else None

    def wrap(f: Callable) -> Callable:
        return torch.compile(f, backend=backend, dynamic=d.dynamic, options=options)

    with torch._dynamo.config.patch(d.config):
        return _sequence(d, wrap)


def fault(d: Draw) -> str | None:
    """What is wrong with the compiled function; None where nothing is, or nothing can be said."""
    try:
        return _fault(d)
    except Skipped:
        return None


def _fault(d: Draw) -> str | None:
    """The same; Skipped where eager or doubles give nothing to compare with, or where torch's own
    plain backend is wrong too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scope = d.module()
        try:
            eager = _sequence(d, lambda f: f)
            exact = [_in_double(scope["f"], make) for make in d.calls(scope)]
        except Exception as problem:
            raise Skipped("eager refuses them") from problem
        if any(_shapes(a) != _shapes(b) for a, b in zip(eager, exact, strict=True)):
            raise Skipped("doubles give other shapes: they look at dtypes or data")
        found = _judged(d, "tilewright", eager, exact)
        torchs = None if found is None else _judged(d, "aot_eager", eager, exact)
        if torchs is not None:
            how = "in the same way" if torchs == found else "in another way"
            raise Skipped(f"torch's own capture fails {how}")
        return found


def _shapes(s: Seen) -> list[Any]:
    leaves = pytree.tree_leaves((s.results, s.arguments, s.gradients))
    return [v.shape if isinstance(v, torch.Tensor) else None for v in leaves]


def _judged(d: Draw, backend: str, eager: list[Seen], exact: list[Seen]) -> str | None:
    try:
        ours = _compiled(d, backend)
    except Exception as problem:  # reported with the program that shows it
        frames = traceback.extract_tb(problem.__traceback__)
        inner = problem.__cause__ or problem
        frames = traceback.extract_tb(inner.__traceback__) or frames
        where = frames[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.name}"
        return f"{type(problem).__name__} at {place}: {str(problem).strip()[:600]}"
    for k, (a, b, c) in enumerate(zip(ours, eager, exact, strict=True)):
        if found := _difference(a, b, c):
            return f"call {k}: {found}"
    return None


def _difference(ours: Seen, eager: Seen, exact: Seen) -> str | None:
    if ours.facts != eager.facts:
        odd = [x for x in ours.facts if x not in eager.facts]
        lost = [x for x in eager.facts if x not in ours.facts]
        return f"is {odd} where eager is {lost}"
    for what in ("results", "arguments", "gradients"):
        found = disagreements(*(getattr(s, what) for s in (ours, eager, exact)))
        if found:
            return f"{what}: {found[0]}"
    return None


def judge_seed(seed: int) -> None:
    """Raises with the draw that fails; Skipped for one that tells nothing."""
    d = draw(seed)
    found = _fault(d)
    if found is not None:
        raise AssertionError(f"seed {seed}: {found}\n{d.text.removeprefix(PRELUDE)}")


def check_seed(seed: int) -> None:
    with suppress(Skipped):
        judge_seed(seed)


GENERATOR = checked("calls", judge_seed)

if __name__ == "__main__":
    raise SystemExit(run_seeds(check_seed, "call sequences", 100, __doc__))
