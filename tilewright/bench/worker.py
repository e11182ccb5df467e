"""One contender in a process of its own: requests as lines of JSON in, answers as lines out.

It stays alive and idle between its turns, so that no contender's threads disturb another's.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from tilewright.bench.contenders import CONTENDERS, Call, Entrant, Unavailable, as_tensors
from tilewright.bench.example import Example, on_device, prepared
from tilewright.bench.measure import nothing, repeats_of, seconds
from tilewright.bench.resident import ResidentPeak

Answer = dict[str, Any]
HOT_CALLS = 3
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BUILDERS = {"model": "models", "operator": "operators"}


def late(name: str) -> Any:
    """A module of this folder that only some workers need: models need transformers, and what ours
    loads to compile belongs into the time of its first call."""
    return import_module(f"tilewright.bench.{name}")


def build(request: Answer) -> Example:
    """The example of a case: the same one in every process."""
    case, dtype = request["case"], getattr(torch, request["dtype"])
    device = request["device"]
    if case["kind"] == "program":
        return on_device(late("programs").example(case["builder"], request["inputs"]), device)
    builders = late(_BUILDERS[case["kind"]]).BUILDERS
    return prepared(builders[case["builder"]], request["tiny"], dtype, device=device)


class Worker:
    """Answers requests. `prepare` comes first, then any number of the others."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.measures: dict[str, Callable[[], float]] = {}
        self.example: Example | None = None
        self.settle: Callable[[], None] = nothing

    def judge(self, request: Answer) -> Answer:
        """Facts about a case, and right results to compare the others with."""
        return late("facts").judge(build(request), Path(request["file"]))

    def machine(self, request: Answer) -> Answer:
        """Become the machine itself: rounds measure its peak and its traffic."""
        machine, threads = late("machine"), request["threads"]
        target = machine.default()
        self.measures = {
            "machine peak": machine.Peak(target, threads),
            "machine traffic": machine.Traffic(
                target, request["read"], request["written"], threads
            ),
        }
        return {}

    def prepare(self, request: Answer) -> Answer:
        """Build the case, make the first call, and compare its results with the right ones."""
        self.example = example = build(request)
        entrant = Entrant(
            example,
            request["dtype"],
            request["threads"],
            Path(request["folder"]),
            request["strict"],
            request["case"]["builder"],
            request["own_weights"],
            request["device"],
        )
        self.settle = torch.cuda.synchronize if request["device"] == "cuda" else nothing
        self.settle()
        grown = ResidentPeak()
        start = time.perf_counter()
        self.call = self._contender(request["contender"])(entrant)
        results = self.call()
        self.settle()
        answer: Answer = {"first": time.perf_counter() - start, "resident": grown.grown()}
        answer["fallbacks"] = getattr(self.call, "fallbacks", None)
        if "file" in request:
            given = as_tensors(results, request["dtype"])
            problem, error = late("facts").verdict(given, Path(request["file"]))
            # Infinity is not a number of JSON's.
            answer |= {"problem": problem, "error": error if math.isfinite(error) else None}
        return answer

    def _contender(self, name: str) -> Callable[[Entrant], Call]:
        return CONTENDERS[name] if name in CONTENDERS else late("programs").peer(name)

    def warm_up(self, _request: Answer) -> Answer:
        call = self.call
        assert call is not None
        for _ in range(HOT_CALLS):
            call()
        repeats = repeats_of(call, self.settle)

        def measure() -> float:
            call()  # the others have had the caches
            return seconds(call, repeats, self.settle)

        self.measures["call"] = measure
        return {"repeats": repeats}

    def round(self, request: Answer) -> Answer:
        return {"found": self.measures[request["what"]]()}

    def memory(self, _request: Answer) -> Answer:
        assert self.call is not None and self.example is not None
        memory = late("memory")
        return {
            "activations": memory.activations(self.call),
            "weights": memory.weights_held(self.example.module),
        }


def sentence(problem: BaseException) -> str:
    """The first line that says something, of the error behind those that only pass it on."""
    problem = getattr(problem, "inner_exception", None) or problem
    lines = str(problem).strip().splitlines() or ["no message"]
    said = lines[0] if not lines[0].endswith(":") else " ".join(lines[:2])
    return f"{type(problem).__name__}: {_COLOURS.sub('', said)}"


def answer_to(worker: Worker, request: Answer) -> Answer:
    try:
        return getattr(worker, request["do"])(request)
    except Unavailable as problem:
        return {"failed": str(problem)}
    except Exception as problem:
        traceback.print_exc()
        return {"failed": sentence(problem)}


def main() -> None:
    # What libraries print goes elsewhere: the lines here are answers only.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    worker = Worker()
    with torch.no_grad():
        for line in sys.stdin:
            request = json.loads(line)
            torch.set_num_threads(request["threads"])
            print(json.dumps(answer_to(worker, request)), file=answers, flush=True)


if __name__ == "__main__":
    main()
