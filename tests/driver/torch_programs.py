"""PyTorch programs as text: inputs, submodules and lines, which can be left out one by one."""

from __future__ import annotations

import linecache
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Input:
    """An argument of a program. A size given by name is another one in each call."""

    dtype: str
    shape: tuple[int | str, ...] = ()
    # normal: moderate floats; whole: -7 to 7; index: from 0 on, below `most`; number: a Python
    # number, another one in each call.
    values: str = "normal"
    most: int = 8
    grad: bool = False
    layout: str = ""  # how it lies in memory: transposed, strided, or just so

    def __str__(self) -> str:
        words = f"{self.dtype}{list(self.shape)}" if self.values != "number" else self.dtype
        return f"{words} {self.values} {self.layout}{' with gradient' if self.grad else ''}".strip()


@dataclass(frozen=True)
class Line:
    """Statements that define values. What changes a value in place stands with its definition."""

    targets: tuple[str, ...]
    text: str

    @property
    def uses(self) -> set[str]:
        return set(re.findall(r"\b(?:[vx]\d+|self\.m\d+)\b", self.text))


@dataclass(frozen=True)
class Program:
    seed: int
    inputs: dict[str, Input]
    modules: dict[str, str]  # what constructs them, by name
    lines: tuple[Line, ...]
    results: tuple[str, ...]
    calls: tuple[Sizes, ...] = ({},)  # the sizes of each call
    grad: bool = False
    dynamic: bool = False
    # Dtype and shape of values in the first call: where one value may stand for another.
    kinds: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict, compare=False)

    def source(self) -> str:
        lines = [
            "class Program(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
        ]
        lines += [f"        self.{name} = {text}" for name, text in self.modules.items()]
        lines += ["", f"    def forward(self, {', '.join(self.inputs)}):"]
        for line in self.lines:
            lines += [f"        {part}" for part in line.text.splitlines()]
        return "\n".join([*lines, f"        return {', '.join(self.results)},", ""])

    def module(self) -> nn.Module:
        """A new instance, with the same numbers in its parameters every time."""
        source = self.source()
        name = f"<program {self.seed}: {zlib.crc32(source.encode())}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "__name__": "program"}
        exec(compile(source, name, "exec"), scope)
        with torch.random.fork_rng():
            made = scope["Program"]()
        with torch.no_grad():
            for label, p in made.named_parameters():
                drawn = torch.rand(p.shape, generator=_generator(self.seed, label)) - 0.5
                p.copy_(drawn + (1.0 if label.endswith("norm") else 0.0))
        return made

    def arguments(self, sizes: Sizes) -> list[Any]:
        return [self.argument(name, spec, sizes) for name, spec in self.inputs.items()]

    def argument(self, name: str, spec: Input, sizes: Sizes) -> Any:
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in spec.shape)
        which = self.calls.index(sizes)
        drawn = _generator(self.seed, name, which)
        if spec.values == "number":
            n = int(torch.randint(2, 9, (), generator=drawn))
            return n if spec.dtype == "int" else n / 4
        wide = (*shape[:-1], 2 * shape[-1]) if spec.layout == "strided" and shape else shape
        dtype = getattr(torch, spec.dtype)
        if spec.values == "index":
            x = torch.randint(0, max(1, spec.most), wide, generator=drawn)
        elif spec.values == "whole":
            low, high = (0, 2) if dtype == torch.bool else (-7, 8)
            x = torch.randint(0 if dtype == torch.uint8 else low, high, wide, generator=drawn)
        else:
            x = torch.randn(wide, generator=drawn, dtype=torch.float64).clamp(-3, 3)
        x = x.to(dtype)
        if spec.layout == "strided" and shape:
            x = x[..., ::2]
        elif spec.layout == "transposed" and x.dim() > 1:
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        return x.requires_grad_(spec.grad)

    def __str__(self) -> str:
        about = [f"# {name}: {spec}" for name, spec in self.inputs.items()]
        calls = [f"# calls: {list(map(dict, self.calls))}"] if self.calls != ({},) else []
        return "\n".join([*about, *calls, self.source()])

    def needed(self) -> Program:
        """Without lines, inputs and modules that no result needs."""
        wanted = set(self.results)
        kept: list[Line] = []
        for line in reversed(self.lines):
            if wanted & set(line.targets):
                kept.append(line)
                wanted |= line.uses
        lines = tuple(reversed(kept))
        modules = {n: m for n, m in self.modules.items() if f"self.{n}" in wanted}
        inputs = {n: i for n, i in self.inputs.items() if n in wanted}
        return replace(self, lines=lines, modules=modules, inputs=inputs)

    def as_code(self) -> str:
        """An expression that makes the program again, with its text to be read."""
        calls = tuple(dict(c) for c in self.calls)
        lines = "".join(f"        Line({line.targets!r}, {line.text!r}),\n" for line in self.lines)
        return (
            f"PROGRAM = Program(\n    seed={self.seed},\n    inputs={self.inputs!r},\n"
            f"    modules={self.modules!r},\n    lines=(\n{lines}    ),\n"
            f"    results={self.results!r},\n    calls={calls!r},\n"
            f"    grad={self.grad},\n    dynamic={self.dynamic},\n)\n"
        )


def _generator(*key: Any) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))


# ---- smaller programs


def smaller(p: Program) -> Iterator[Program]:
    """Simpler programs, those that leave out most first. Not all of them run."""
    if p.dynamic:
        yield replace(p, dynamic=False)
    if p.grad:
        yield replace(p, grad=False)
    if len(p.calls) > 1:
        yield from (replace(p, calls=(c,)) for c in p.calls)
        yield from (replace(p, calls=p.calls[:k] + p.calls[k + 1 :]) for k in range(len(p.calls)))
    if len(p.results) > 1:
        yield from (replace(p, results=(r,)).needed() for r in p.results)
    names = [t for line in p.lines for t in line.targets]
    yield from (replace(p, results=(n,)).needed() for n in names if (n,) != p.results)
    part = len(p.lines) // 2
    while part:
        for first in range(0, len(p.lines), part):
            if (less := _without(p, first, first + part)) is not None:
                yield less
        part //= 2
    yield from _bypassed(p)
    yield from _cut(p)
    yield from _plainer(p)


def _without(p: Program, first: int, last: int) -> Program | None:
    """Without some lines and those that use what they define."""
    gone = {t for line in p.lines[first:last] for t in line.targets}
    kept: list[Line] = []
    for k, line in enumerate(p.lines):
        if first <= k < last:
            continue
        if line.uses & gone - set(line.targets):
            gone |= set(line.targets)
        else:
            kept.append(line)
    results = tuple(r for r in p.results if r not in gone)
    if not results:
        defined = [t for line in kept for t in line.targets]
        results = tuple(defined[-1:])
    return replace(p, lines=tuple(kept), results=results).needed() if results else None


def _bypassed(p: Program) -> Iterator[Program]:
    """One value in place of another of its dtype and shape."""
    for k, line in enumerate(p.lines):
        for target in line.targets[:1]:
            alike = [u for u in sorted(line.uses) if p.kinds.get(u) == p.kinds.get(target)]
            for other in alike[:2]:
                if other in p.kinds:
                    yield _renamed(p, k, target, other)


def _renamed(p: Program, k: int, old: str, new: str) -> Program:
    later = tuple(
        Line(line.targets, re.sub(rf"\b{old}\b", new, line.text)) for line in p.lines[k + 1 :]
    )
    results = tuple(new if r == old else r for r in p.results)
    return replace(p, lines=p.lines[:k] + later, results=results).needed()


def _cut(p: Program) -> Iterator[Program]:
    """A value that is computed becomes an input."""
    for k, line in reversed(list(enumerate(p.lines))):
        if len(line.targets) != 1 or k == len(p.lines) - 1 or line.targets[0] not in p.kinds:
            continue
        dtype, shape = p.kinds[line.targets[0]]
        if len(p.calls) > 1 and any(isinstance(d, str) for i in p.inputs.values() for d in i.shape):
            return  # its shape is known for one call only
        whole = not dtype.startswith(("float", "bfloat"))
        name = f"x{1 + max([int(n[1:]) for n in p.inputs], default=-1)}"
        grad = p.grad and not whole
        spec = Input(dtype, shape, "whole" if whole else "normal", grad=grad)
        made = replace(p, inputs={**p.inputs, name: spec}, kinds={**p.kinds, name: (dtype, shape)})
        yield _renamed(made, k, line.targets[0], name)


def _plainer(p: Program) -> Iterator[Program]:
    for name, spec in p.inputs.items():
        plainer: list[Input] = []
        if spec.layout:
            plainer.append(replace(spec, layout=""))
        if spec.grad:
            plainer.append(replace(spec, grad=False))
        if "float" in spec.dtype and spec.dtype != "float32":
            plainer.append(replace(spec, dtype="float32"))
        for other in plainer:
            yield replace(p, inputs={**p.inputs, name: other})
    for k, line in enumerate(p.lines):
        parts = line.text.splitlines()
        for n in range(1, len(parts)):
            text = "\n".join(parts[:n] + parts[n + 1 :])
            yield replace(p, lines=(*p.lines[:k], Line(line.targets, text), *p.lines[k + 1 :]))
        for count in re.findall(r"range\((\d+)\)", line.text):
            if int(count) > 1:
                text = line.text.replace(f"range({count})", f"range({int(count) // 2})")
                yield replace(p, lines=(*p.lines[:k], Line(line.targets, text), *p.lines[k + 1 :]))


def tensors(values: Any) -> list[Tensor]:
    return [x for x in values if isinstance(x, Tensor)]
