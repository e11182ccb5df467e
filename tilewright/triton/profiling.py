"""`triton.profiler` for a CPU: the times of a script's scopes, and the metrics it gives for them.

A launch here is over when it returns, so the time of a scope is that of the kernels in it. Kernels
themselves are not listed.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.tree import Tree

from tilewright.base.errors import Invalid

_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
_SCALES = {"": 1.0, "g": 1e-9, "t": 1e-12}


@dataclass
class Node:
    """A scope: its time, how often it was entered, and the sums of its metrics."""

    name: str
    seconds: float = 0.0
    count: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)

    def child(self, name: str) -> Node:
        return self.children.setdefault(name, Node(name))

    def plain(self) -> dict[str, Any]:
        inner = [c.plain() for c in self.children.values()]
        return {**vars(self), "children": inner}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Node:
        made = Node(**{k: v for k, v in plain.items() if k != "children"})
        made.children = {c["name"]: Node.of(c) for c in plain["children"]}
        return made


class _Session:
    def __init__(self, name: str):
        self.name, self.active = name, True
        self.root = Node("ROOT")
        self.open: list[Node] = [self.root]


_sessions: dict[int, _Session] = {}


def start(name: str | None = None, **_: Any) -> int:
    """Begin a profile; options about a GPU (context, backend, hook …) have no effect."""
    number = max(_sessions, default=-1) + 1
    _sessions[number] = _Session(name or "proton")
    return number


def _chosen(session: int | None) -> list[_Session]:
    if session is not None and session not in _sessions:
        known = ", ".join(map(str, _sessions)) or "none"
        raise Invalid(f"there is no profile {session}", hint=f"profiler.start gave: {known}")
    return list(_sessions.values()) if session is None else [_sessions[session]]


def activate(session: int | None = None) -> None:
    for s in _chosen(session):
        s.active = True


def deactivate(session: int | None = None, flushing: bool = False) -> None:
    for s in _chosen(session):
        s.active = False


def finalize(session: int | None = None, output_format: str = "hatchet") -> None:
    """Write `<name>.hatchet` and end the profile."""
    for number in list(_sessions) if session is None else [session]:
        (s,) = _chosen(number)
        Path(f"{s.name}.hatchet").write_text(json.dumps(s.root.plain()))
        del _sessions[number]


@contextmanager
def scope(name: str, metrics: Mapping[str, Any] | None = None) -> Iterator[None]:
    """What happens inside is counted under this name, with numbers such as flops16 and bytes."""
    entered = [(s, s.open[-1].child(name)) for s in _sessions.values() if s.active]
    for s, node in entered:
        s.open.append(node)
    begin = time.perf_counter()
    try:
        yield
    finally:
        took = time.perf_counter() - begin
        for s, node in entered:
            s.open.pop()
            node.seconds += took
            node.count += 1
            for k, v in (metrics or {}).items():
                node.metrics[k] = node.metrics.get(k, 0.0) + float(v)


def profile(fn: Callable[..., Any] | None = None, *, name: str | None = None, **given: Any) -> Any:
    """Profiles each call of the decorated function."""
    if fn is None:
        return functools.partial(profile, name=name, **given)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        session = start(name or fn.__name__, **given)
        try:
            return fn(*args, **kwargs)
        finally:
            finalize(session)

    return call


# ---- the viewer


def parse(metrics: Sequence[str], filename: str, *_: Any, **__: Any) -> tuple[Node, list[str]]:
    """The profile in a file, and the metrics to be shown: time/ms, tflop16/s, gbyte/s, count …"""
    path = Path(filename)
    if not path.is_file():
        raise Invalid(f"there is no profile {filename}", hint="profiler.finalize() writes it")
    return Node.of(json.loads(path.read_text())), list(metrics)


def print_tree(tree: Node, metrics: Sequence[str], *_: Any, **__: Any) -> None:
    shown = Tree(_row(tree, metrics))
    _grow(shown, tree, metrics)
    Console().print(shown)


def _grow(shown: Tree, node: Node, metrics: Sequence[str]) -> None:
    for c in node.children.values():
        _grow(shown.add(_row(c, metrics)), c, metrics)


def _row(node: Node, metrics: Sequence[str]) -> str:
    values = ", ".join(f"{m} {_metric(node, m):.3f}" for m in metrics) if node.count else ""
    return f"{node.name}  {values}"


def _metric(node: Node, metric: str) -> float:
    """One number of a scope: a time in a unit, a count, or something done per second."""
    what, _, per = metric.partition("/")
    if what in ("time", "avg_time"):
        return node.seconds * _UNITS.get(per, 1.0) / (node.count if what == "avg_time" else 1)
    if what == "count":
        return float(node.count)
    if per == "s":
        for letter, scale in _SCALES.items():
            kind = what.removeprefix(letter)
            # Scopes say flops16 and bytes, reports tflop16 and gbyte.
            name = "bytes" if kind == "byte" else kind.replace("flop", "flops", 1)
            if name in node.metrics:
                return node.metrics[name] * scale / max(node.seconds, 1e-12)
    return node.metrics.get(metric, 0.0)
