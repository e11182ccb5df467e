"""The arguments of `tilewright bench`, and what its words mean."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from tilewright.bench.catalog import MODELS, OPERATORS, PROGRAMS
from tilewright.bench.measure import MIN_ROUNDS
from tilewright.driver.cli.models.inputs import INPUT

PARTS = {
    "overhead": ("overhead", "what a call costs besides its kernels"),
    "schedules": ("schedules", "a matrix product by schedule steps alone, against the peak"),
    "peak": ("machine", "multiply-adds and bytes per second of this machine"),
}
PEERS = ("eager", "inductor", "inductor-freezing", "max-autotune", "onnxruntime", "openvino")
MORE_PEERS = ("xla", "iree", "reduce-overhead")
# The one that takes longest is the last: where time ends, it is the one that is missing.
GPU_PEERS = ("eager", "inductor", "reduce-overhead", "xla", "max-autotune")
ALL_CASES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    models, operators = (", ".join(c.name for c in cases) for cases in (MODELS, OPERATORS))
    parser.add_argument(
        "cases",
        nargs="*",
        default=["models"],
        metavar="CASE",
        help=f"models (the default), ops, {PROGRAMS}, one of {models}, or of {operators}",
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="cuda: the first GPU, in bfloat16"
    )
    parser.add_argument(
        "--part", default="1/1", metavar="K/N", help="every N-th case, from the K-th: a shorter run"
    )
    parser.add_argument(
        "--peers",
        help=f"by commas, of {', '.join((*PEERS, *MORE_PEERS))}, or FILE.py:NAME, a function that "
        "takes a module and its inputs and gives a call without arguments",
    )
    parser.add_argument("--rounds", type=int, default=9, help=f"at least {MIN_ROUNDS}")
    parser.add_argument("--threads", type=int, default=0, help="of every contender; 0: all cores")
    parser.add_argument(
        "--dtype", help="of cases that have none of their own: float32, on a GPU bfloat16"
    )
    parser.add_argument("--tiny", action="store_true", help="the sizes of the tests")
    parser.add_argument("--only", choices=["time", "compile"], help="half of the numbers")
    parser.add_argument(
        "--compile-rounds", type=int, default=3, metavar="N", help="first calls of ours"
    )
    parser.add_argument(
        "--together",
        nargs="?",
        type=int,
        const=ALL_CASES,
        default=0,
        metavar="N",
        help="N cases (or all) get ready at the same time: quicker; first calls are those",
    )
    parser.add_argument(
        "--within",
        type=float,
        default=math.inf,
        metavar="S",
        help="with --together: seconds until rounds begin, without those that are not ready",
    )
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="locked for rounds: several runs take turns"
    )
    parser.add_argument(
        "--contended", action="store_true", help="time ours with one core taken, too"
    )
    parser.add_argument(
        "--own-weights", action="store_true", help="ours stores packed weights only"
    )
    parser.add_argument("--patience", type=float, default=1200.0, help="seconds for one answer")
    parser.add_argument(
        "-i", "--input", action="append", metavar="[NAME=]TYPE", help=f"of a program: {INPUT}"
    )
    parser.add_argument("--strict", action="store_true", help="a program's fallback is an error")
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=True,
        metavar="FILE",
        help="every number as JSON, in the place of the tables; with a FILE, written there",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw bars and a roofline there")
