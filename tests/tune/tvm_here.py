"""TVM's candidates built and run in this process, for machines on which its worker processes never
answer: its own functions, called without them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

_SCHEDULES = "tvm.s_tir.meta_schedule"


def answers(module: Any, target: Any, patience: float) -> bool:
    """Do TVM's worker processes build a module?"""
    builder = import_module(f"{_SCHEDULES}.builder")
    made = builder.LocalBuilder(max_workers=1, timeout_sec=patience)
    (found,) = made.build([builder.BuilderInput(module, target)])
    return found.artifact_path is not None


def here() -> dict[str, Any]:
    """A builder and a runner without workers, as arguments of `tune_tir`."""
    derived = import_module("tvm.ir.utils").derived_object
    building, running = (
        import_module(f"{_SCHEDULES}.{name}")
        for name in ("builder.local_builder", "runner.local_runner")
    )
    builders, runners = (import_module(f"{_SCHEDULES}.{name}") for name in ("builder", "runner"))

    def build(self: Any, build_inputs: Sequence[Any]) -> list[Any]:
        out = []
        for x in build_inputs:
            try:
                params = building._serialize_params(x.params)
                path = building._worker_func(None, None, x.mod, x.target, params)
                out.append(builders.BuilderResult(path, None))
            except Exception as why:  # a candidate that cannot be built is TVM's to count
                out.append(builders.BuilderResult(None, str(why)))
        return out

    def run(self: Any, runner_inputs: Sequence[Any]) -> list[Any]:
        out = []
        for x in runner_inputs:
            args = tuple(a.as_json() for a in x.args_info)
            config = runners.EvaluatorConfig._normalized(None)
            place = (1, str(x.artifact_path), str(x.device_type), args)
            try:
                times = running._worker_func(None, None, None, config, *place)
                out.append(running.LocalRunnerFuture(res=times))
            except Exception as why:  # the same of one that cannot run
                out.append(running.LocalRunnerFuture(error_message=str(why)))
        return out

    builder = derived(type("Here", (builders.PyBuilder,), {"build": build}))
    runner = derived(type("Here", (runners.PyRunner,), {"run": run}))
    return {"builder": builder(), "runner": runner()}
