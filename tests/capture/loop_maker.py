"""Random loops of Python as text: what steps do, what is there before them and read after them.

Each feature adds some lines before the loop, a statement or more to a step, and values that are
returned. Most tensors are 3 x 4 and of float64, so that any of them may stand for another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

STEPS = 20  # of `x` along axis 1, and of `y` along axis 0


@dataclass(frozen=True)
class LoopProgram:
    """A function with a loop. `body` and the others are statements, of several lines perhaps."""

    seed: int
    head: str
    before: tuple[str, ...]
    body: tuple[str, ...]
    after: tuple[str, ...]
    results: tuple[str, ...]
    grad: bool = False  # x, y and w ask for a gradient
    dynamic: bool = False
    native: bool = False  # through the whole compiler; else Dynamo's graph runs in eager
    outside: tuple[str, ...] = ()  # of the module

    def source(self) -> str:
        lines = [*self.outside, "def program(x, y, w, given):"]
        lines += _indented(self.before, 4)
        lines += ["    " + line for line in self.head.splitlines()]
        deep = 4 + len(self.head.splitlines()[-1]) - len(self.head.splitlines()[-1].lstrip())
        lines += _indented(self.body or ("pass",), deep + 4)
        lines += _indented(self.after, 4)
        return "\n".join([*lines, f"    return {', '.join(self.results)},", ""])


def _indented(statements: tuple[str, ...], by: int) -> list[str]:
    return [" " * by + line for text in statements for line in text.splitlines()]


class Maker:
    """A program that grows by features."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.outside: list[str] = []
        self.before: list[str] = []
        self.body: list[str] = []
        self.after: list[str] = []
        self.results: list[str] = []
        self.states: list[str] = []  # names of tensors that are there before a step
        self.known: list[str] = []  # names of tensors that a step has set
        self.numbers: list[str] = []  # expressions of Python's numbers
        self.count = 0
        self.head, self.low, self.high = self._head()

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def _head(self) -> tuple[str, int, int]:
        """A loop, with the least and the largest number of its steps."""
        r = self.r
        n = r.choice((20, 20, 20, 19, 18, 17, 16, 15, 5))
        plain = f"for t in range({n}):", 0, n - 1
        if r.random() < 0.8:
            return plain
        return r.choice(
            (
                ("for t in range(x.shape[1]):", 0, 19),
                ("for t in range(1, 20):", 1, 19),
                ("for t in range(19, -1, -1):", 0, 19),
                ("for t in range(-20, 0):", -20, -1),
                ("for t in range(0, 40, 2):", 0, 38),
                ("for t in reversed(range(20)):", 0, 19),
                ("for t, z in enumerate(y):", 0, 19),
                ("for t, z in zip(range(20), y):", 0, 19),
                ("for s in range(2):\n    for t in range(20):", 0, 19),
                ("for t in range(17):\n    for s in range(2):", 0, 16),
                ("for s in range(17):\n    for t in range(17):", 0, 16),
                ("t = -1\nwhile t < 18:\n    t += 1\n    if True:", 0, 18),
                ("for t in list(range(18)):", 0, 17),
                ("for t in range(3, 20):", 3, 19),
                plain,
            )
        )

    # ---- expressions

    def index(self) -> str:
        """An index of an axis of 20 that depends on the number of the step."""
        r, low, high = self.r, self.low, self.high
        if r.random() < 0.04:
            return r.choice(("t + 1", "2 * t", "t - 30", "20 - t"))
        fits: list[tuple[str, Callable[[int], int]]] = [
            ("t", lambda t: t),
            ("t", lambda t: t),
            ("t - 1", lambda t: t - 1),
            ("t + 1", lambda t: t + 1),
            ("t - 20", lambda t: t - 20),
            ("19 - t", lambda t: 19 - t),
            ("-t - 1", lambda t: -t - 1),
            ("-1 - t", lambda t: -t - 1),
            ("t // 2", lambda t: t // 2),
            ("t % 3", lambda t: t % 3),
            ("t % 20", lambda t: t % 20),
            ("min(t, 12)", lambda t: min(t, 12)),
            ("abs(t)", abs),
            ("t * t % 20", lambda t: t * t % 20),
            ("t - 3", lambda t: t - 3),
            ("-t", lambda t: -t),
        ]
        good = [s for s, f in fits if all(-20 <= f(t) < 20 for t in range(low, high + 1))]
        moving = [
            s for s in good if s.replace("-", "+").replace(" ", "").strip("0123456789+t") == ""
        ]
        if moving and r.random() < 0.93:
            return moving[0] if r.random() < 0.5 else r.choice(moving)
        return r.choice(good or ["t % 20"])

    def slice(self) -> str:
        """A part of `x` or `y` that depends on the number of the step."""
        r, i = self.r, self.index()
        whole = (f"x[:, {i}]", f"y[{i}]", f"y[{i}, :]", f"x[..., {i}, :]", f"y[{i}, ..., :]")
        part = (f"y[{i}, :, 1:2]", f"y[{i}, 1]", f"x[:, {i}, None, 0]", f"x[:, {i}, 2:3]")
        wide = (f"y[{i}:{i} + 1].sum(0)", f"x[:, {i}:{i} + 1, 1]", f"x[:, {i}:{i} + 2].sum(1)")
        other = (f"x.select(1, {i})", f"y.narrow(0, abs({i}), 1)[0]", f"x.unbind(1)[{i}]")
        return r.choices((*whole, *part, *wide, *other), (*[8] * 5, *[2] * 4, *[2] * 3, *[1] * 3))[
            0
        ]

    def number(self) -> str:
        r = self.r
        if r.random() < 0.1:
            return r.choice((*self.numbers, "t", "0.1 * t", "1 / (t + 30)"))
        return r.choice(("0.5", "2", "0.25", "-1", "len(given)"))

    def tensor(self, depth: int = 1) -> str:
        """An expression of 3 x 4 float64."""
        r = self.r
        if depth <= 0 or r.random() < 0.3:
            some = [*self.states, *self.states, *self.known]
            if some and r.random() < 0.6:
                return r.choice(some)
            return self.slice() if r.random() < 0.8 else "y[3]"
        a = self.tensor(depth - 1)
        if r.random() < 0.4:
            return f"{a} {r.choice('+-*')} {self.tensor(depth - 1)}"
        n = self.number() if r.random() < 0.3 else "0.5"
        forms = (
            *(f"torch.tanh({a})", f"torch.sin({a} @ w)", f"torch.tanh({a} @ w + y[2])"),
            *(f"{n} * torch.sigmoid({a})", f"({a}).softmax(-1)", f"F.relu({a})"),
            *(f"torch.where({a} > 0, {a}, y[1])", f"({a}).clone()", f"({a}).detach()"),
            *(f"torch.stack([torch.sin(q) for q in ({a})])", f"({a}).float().double()"),
            *(f"({a}).mean(0, keepdim=True).expand(3, 4)", f"torch.roll({a}, 1, 0)"),
            *(f"({a}).cumsum(-1)", f"F.layer_norm({a}, (4,))", f"({a}).sort(-1)[0]"),
            *(f"torch.cat([({a})[:, 1:], y[0][:, :1]], 1)", f"({a}).t().contiguous().t()"),
            *(f"({a}).view(4, 3).reshape(3, 4)", f"{n} * ({a})", f"({a}) / (2 + {n})"),
        )
        return r.choice(forms)

    def value(self) -> str:
        """The same, its numbers bounded."""
        made = self.tensor(self.r.choice((1, 1, 2)))
        return made if self.r.random() < 0.2 else f"torch.tanh({made} + {self.tensor(0)})"

    def condition(self) -> str:
        r, n = self.r, self.high
        which = r.choice((self.low, self.low, n, n, n - 1, 7))
        forms = (
            *(f"t == {which}", f"t != {which}", f"t > {which}", f"t < {which}", f"t <= {which}"),
            *("t", "not t", "t % 2", "t % 10 == 9", "t in (2, 5)", f"t >= {self.low}"),
            *(f"{which} == t", "t is None", f"t > {n + 3}", "isinstance(t, int)", "t == 3.0"),
            *("len(given) > 4", "h0 is y", "h0.shape[0] == 3", "h0.requires_grad"),
        )
        if self.numbers and r.random() < 0.3:
            return f"{r.choice(self.numbers)} {r.choice(('>', '==', '<'))} {r.choice((0, 1, 5))}"
        return r.choice(forms)

    def give(self, *results: str) -> None:
        self.results += [x for x in results if x not in self.results]

    def made(self, steps: int) -> LoopProgram:
        r = self.r
        body = [_perhaps_in_branch(self, text) for text in self.body]
        after = self.after
        if r.random() < 0.05:
            body.insert(r.randrange(len(body) + 1), f"if {self.condition()}:\n    break")
            if r.random() < 0.4:
                after = ["else:\n    h0 = h0 * 3", *after]
        if r.random() < 0.05:
            body.insert(r.randrange(len(body) + 1), f"if {self.condition()}:\n    continue")
        deep = len(self.head.splitlines()) > 1
        after = [text for text in after if not (deep and text.startswith("else"))]
        native = r.random() < 0.04
        return LoopProgram(
            *(steps, self.head, tuple(self.before), tuple(body), tuple(after)),
            tuple(self.results),
            grad=r.random() < 0.4,
            dynamic=r.random() < 0.07,
            native=native,
            outside=tuple(self.outside),
        )


def _perhaps_in_branch(m: Maker, text: str) -> str:
    if m.r.random() > 0.05:
        return text
    inside = "\n".join("    " + line for line in text.splitlines())
    way = m.r.random()
    if way < 0.6:
        return f"if {m.condition()}:\n{inside}"
    if way < 0.8:
        return f"if {m.condition()}:\n{inside}\nelse:\n    h0 = h0 * 0.5"
    if way < 0.9:
        return f"with torch.no_grad():\n{inside}"
    return f"try:\n{inside}\nexcept (IndexError, NameError, KeyError):\n    h0 = h0 * 0.7"
