"""One measurement in a process of its own: a request as JSON in, a result as JSON out."""

import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from bench.measure import interleaved, peak_allocated
from tests.suites.adapter import Work, compiled
from tests.suites.models import Example, build
from tilewright.runtime.program import Program


def example(request: dict[str, Any]) -> Example:
    return build(request["model"], request["tiny"], getattr(torch, request["dtype"]))


def contender(name: str, chosen: Example) -> Callable[[], object]:
    """A call without arguments; whatever compiles does so in the first call."""
    module: Any = chosen.module
    if name != "eager":
        strict = name == "tilewright"
        module = compiled(module, name, strict=strict, fullgraph=True, work=Work())
    return lambda: module(*chosen.inputs)


def steady(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds per call of all contenders in turn, hot."""
    chosen = example(request)
    calls = {name: contender(name, chosen) for name in request["contenders"]}
    for call in calls.values():
        for _ in range(3):
            call()
    return {"seconds": interleaved(calls, request["rounds"], tick)}


def cold(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the first call in this process."""
    call = contender(request["contender"], example(request))
    start = time.perf_counter()
    call()
    return {"seconds": time.perf_counter() - start}


def memory(request: dict[str, Any]) -> dict[str, Any]:
    """Bytes of activations at the peak of a hot call: torch's own and the arenas of programs."""
    call = contender(request["contender"], example(request))
    for _ in range(3):
        call()
    programs = [found for found in gc.get_objects() if type(found) is Program]
    arenas = sum(program.held for program in programs)
    return {"bytes": arenas + peak_allocated(call)}


def tick() -> None:
    print("tick", flush=True)


KINDS = {"steady": steady, "cold": cold, "memory": memory}


def main() -> None:
    request = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    if request["threads"]:
        torch.set_num_threads(request["threads"])
    with torch.no_grad():
        result = KINDS[request["kind"]](request)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
