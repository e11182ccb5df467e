"""What a call costs besides its kernels, in microseconds."""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tilewright.base import knobs
from tilewright.bench.example import Example
from tilewright.bench.measure import MIN_ROUNDS, busy, interleaved
from tilewright.bench.models import hf, language, tokens
from tilewright.driver.api import compile
from tilewright.driver.torch.call import Unit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=15, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--json", type=Path, help="write every number to this file")


def add_up(*tensors: torch.Tensor) -> torch.Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def thin_bert() -> Example:
    """BERT-base's 200 weights with kernels that take next to no time: width 12, one token."""
    torch.manual_seed(0)
    config = hf.BertConfig(
        hidden_size=12, num_attention_heads=12, intermediate_size=12, vocab_size=11
    )
    inner = hf.BertModel(config).eval()
    return language(inner, tokens(11, 1, 1), "last_hidden_state", "pooler_output")


def small_callables(rounds: int) -> list[tuple[str, float]]:
    """A `tw.compile` callable on one-element tensors: the kernel takes no time worth mention."""
    rows = []
    for count in (1, 4, 10):
        tensors = [torch.ones(1) for _ in range(count)]
        ours = compile(add_up if count > 1 else torch.neg, *tensors)
        eager = add_up if count > 1 else torch.neg
        calls = {"ours": lambda f=ours, t=tensors: f(*t), "eager": lambda f=eager, t=tensors: f(*t)}
        times = interleaved(calls, rounds)
        rows.append((f"tw.compile, {count} tensors", median(times["ours"])))
        rows.append(
            (f"… the same in eager ({max(count - 1, 1)} operators)", median(times["eager"]))
        )
    return rows


class Stopwatch:
    """Adds up the time spent inside a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.spent = function, 0.0

    def __call__(self, *args: Any) -> Any:
        start = time.perf_counter()
        try:
            return self.function(*args)
        finally:
            self.spent += time.perf_counter() - start


def whole_model(rounds: int) -> list[tuple[str, float]]:
    """BERT under torch.compile and no_grad: Dynamo's share, ours, and the native code's."""
    example = thin_bert()
    parts = _parts(example, rounds)
    with knobs.straight_calls.override(False):  # so that the native code can be watched
        kernels = median(_parts(example, rounds)["native"])
    whole, ours = median(parts["all"]), median(parts["callable"])
    return [
        ("BERT's 200 weights, the whole call", whole),
        ("… Dynamo and AOTAutograd", whole - ours),
        ("… our callable without native code", ours - kernels),
        ("… native code (width 12, one token)", kernels),
    ]


def _parts(example: Example, rounds: int) -> dict[str, list[float]]:
    """Seconds of a call in every round: of all of it, our callable, and the native code, where that
    is not called directly."""
    torch._dynamo.reset()
    spread, inside = Unit.spread, Stopwatch(Unit.__call__)
    programs: list[Any] = []

    def watched(unit: Unit) -> Stopwatch:
        inside.function, programs[:] = spread(unit), unit.programs
        return inside

    # Before compiling: that stores what it gives.
    with patch.object(Unit, "spread", watched):
        fast = torch.compile(
            example.module, backend="tilewright", fullgraph=True, options={"strict": True}
        )
        for _ in range(20):
            fast(*example.inputs)
        program: Any = programs[0]
        native = program._call = Stopwatch(program._call)
        parts: dict[str, list[float]] = {"all": [], "callable": [], "native": []}
        for _ in range(max(rounds, MIN_ROUNDS)):
            for name, seconds in _one_round(fast, example, inside, native).items():
                parts[name].append(seconds)
    return parts


def _one_round(
    fast: Callable, example: Example, callable_: Stopwatch, native: Stopwatch, repeats: int = 50
) -> dict[str, float]:
    callable_.spent = native.spent = 0.0
    start = time.perf_counter()
    for _ in range(repeats):
        fast(*example.inputs)
    spent = {"all": time.perf_counter() - start}
    spent |= {"callable": callable_.spent, "native": native.spent}
    return {name: seconds / repeats for name, seconds in spent.items()}


def main(given: argparse.Namespace) -> int:
    console = Console()
    warning = busy()
    rows: list[tuple[str, float]] = []
    with torch.no_grad():
        for measure in track(
            (small_callables, whole_model), "measuring", console=console, transient=True
        ):
            rows += measure(given.rounds)
    table = Table(title="overhead of a hot call")
    table.add_column("what")
    table.add_column("µs", justify="right")
    for what, seconds in rows:
        table.add_row(what, f"{1e6 * seconds:.1f}")
    console.print(table)
    if warning:
        console.print(f"[yellow]{warning}[/]", highlight=False)
    if given.json:
        found = {"warning": warning, "seconds": dict(rows)}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0
