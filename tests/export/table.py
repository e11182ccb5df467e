"""Models as packages, on every target: sizes, times and whether they are right, in a process that
has nothing but the program, the package and the C library.

    python -m tests.export.table [--models resnet50,bert] [--targets host,x86-64-v3] [--tiny]

The models are those of the benchmark and ten further ones (`models.py`); with symbolic sizes they
are called at all that are listed there. `--tiny` builds them small, with all of their structure,
since emulated code is slow; they are called with several draws of their inputs. `--tokens 16` cuts
texts to their first tokens, for models at full size where 128 tokens take an hour; `--once` makes
one call with one draw instead of two calls with each. Code for this
machine runs natively, other code under qemu-user (ziglang compiles the C program that calls it).
Times of emulated code say nothing; times of native code need an idle machine. `speed` is
the time of tw.compile's program over that of the package, measured in turns; `copied` the same
where weights are in memory (TW_COPY_WEIGHTS) instead of mapped from the file.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

import tilewright as tw
from tests.export.foreign import command
from tests.export.harness import called, judge_together, require_only_libc, results, written
from tests.export.models import BENCH, FURTHER, Packaged, packaged
from tilewright import targets
from tilewright.driver.export.api import export

MODELS = [*BENCH, *FURTHER]
TARGETS = "host arm64 x86-64 x86-64-v3 riscv64 riscv64-v armv7".split()
ROUNDS = 5


@dataclass(frozen=True)
class Row:
    model: str
    target: str
    code: int  # bytes
    weights: int  # bytes
    link_ms: float
    export_s: float
    tiny: bool
    right: str
    load_ms: float | None = None
    first: float | None = None  # the first call over a steady one
    speed: float | None = None
    copied: float | None = None


def row(
    name: str, model: Packaged, target: str, tiny: bool, timed: bool, once: bool, folder: Path
) -> Row:
    path, start = folder / "package.twp", perf_counter()
    made = export(
        model.module, *model.inputs, path=path, target=target, dynamic=model.dynamic, name=name
    )
    seconds = perf_counter() - start
    level = made.levels[0]
    facts = (len(level.code), made.manifest["weights"]["bytes"], 1e3 * level.link_seconds, seconds)
    by = command(level.target.arch)
    if isinstance(by, str):
        return Row(name, target, *facts, tiny, f"not run: {by}")
    out = folder / "out"
    try:
        draws, got = (*(() if once else model.further), model.inputs), []
        for inputs in draws:
            files = written([x.numpy() for x in inputs], folder)
            mode = "once" if once else "maps"
            require_only_libc(called(mode, path, out, 0, *files, by=by), path)
            got.append(results(out))
        judge_together(model.module, draws, got)
        right = "right"
    except AssertionError as problem:
        return Row(name, target, *facts, tiny, f"WRONG: {problem}"[:200])
    if not timed or level.target.arch != platform.machine():
        return Row(name, target, *facts, tiny, right)
    times: list[str] = []
    with torch.no_grad():
        fast = tw.compile(model.module, *model.inputs)
        mapped: list[float] = []
        copied: list[float] = []
        for _ in range(ROUNDS):
            own = min(_seconds(fast, model.inputs) for _ in range(20))
            times.append(called("time", path, out, 0, *files, by=by))
            mapped.append(1e3 * own / _number(times[-1], "best"))
            copied.append(1e3 * own / _number(called("copy", path, out, 0, *files, by=by), "best"))
    loads = [_number(x, "open") for x in times]
    firsts = [_number(x, "first") / _number(x, "best") for x in times]
    speeds = median(mapped), median(copied)
    return Row(name, target, *facts, tiny, right, median(loads), median(firsts), *speeds)


def cut(model: Packaged, tokens: int) -> Packaged:
    """The same model with texts of this many tokens."""

    def shorter(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(x if x.is_floating_point() or x.dim() < 2 else x[:, :tokens] for x in inputs)

    return replace(model, inputs=shorter(model.inputs), further=[shorter(x) for x in model.further])


def _seconds(fast: object, inputs: Sequence[torch.Tensor]) -> float:
    assert callable(fast)
    start = perf_counter()
    fast(*inputs)
    return perf_counter() - start


def _number(text: str, word: str) -> float:
    words = text.split()
    return float(words[words.index(word) + 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--tiny", action="store_true", help="small sizes of the models")
    parser.add_argument("--tokens", type=int, help="cut texts to this many tokens")
    parser.add_argument("--once", action="store_true", help="one call with one draw of the inputs")
    parser.add_argument("--no-times", action="store_true", help="sizes and results only")
    parser.add_argument("--json", type=Path, help="write the rows there")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    print(
        f"{'model':16} {'target':10} {'code KB':>8} {'weights MB':>11} {'link ms':>8} "
        f"{'export s':>8} {'load ms':>8} {'first':>6} {'speed':>6} {'copied':>6}  result"
    )
    for name in given.models.split(","):
        model = packaged(name, given.tiny)
        model = cut(model, given.tokens) if given.tokens else model
        for target in given.targets.split(","):
            if target != "host" and targets.get(target).grid is not None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                timed = not given.no_times
                r = row(name, model, target, given.tiny, timed, given.once, Path(folder))
            rows.append(r)
            shown = [
                f"{x:.2f}" if x is not None else "–"
                for x in (r.load_ms, r.first, r.speed, r.copied)
            ]
            print(
                f"{r.model:16} {r.target:10} {r.code / 1e3:8.1f} {r.weights / 1e6:11.1f} "
                f"{r.link_ms:8.1f} {r.export_s:8.1f} {shown[0]:>8} {shown[1]:>6} {shown[2]:>6} "
                f"{shown[3]:>6}  {r.right}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return int(any(r.right.startswith("WRONG") for r in rows))


if __name__ == "__main__":
    sys.exit(main())
