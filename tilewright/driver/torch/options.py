"""Options of the torch.compile backend and of `tw.compile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.driver.program.options import default_passes

if TYPE_CHECKING:  # loaded only where a list is given
    from tilewright.ir.pipeline import Pipeline


_CHOICES = {
    "random": ("own", "eager"),
    "executor": ("native", "interpreter"),
    "precision": ("reassociate", "strict"),
    "optimize": ("", "search"),
    "choose": ("auto", "default", "early", "ranked", "timed", "records"),
}


_LEAST = {"specialisations": 1, "specialise_after": 0, "specialise_most": 1}


@dataclass(frozen=True)
class TorchOptions:
    """What `options={…}` of torch.compile and the keywords of `tw.compile` may say."""

    strict: bool = False  # an operator that would run in eager is an error
    # "own": our counter-based stream; "eager": random operators run in eager, with its bits
    random: str = "own"
    # "interpreter": numpy evaluates the definitions (slow, for comparison)
    executor: str = "native"
    specialisations: int = 64  # programs cached per symbolic graph, least recently used dropped
    # A program of all sizes counts its calls by their sizes. Sizes that were called so often get a
    # program of their own, compiled by another process while calls go on; 0: never. Not with
    # own_weights, optimize="search", choose="timed" or given schedules, and not on GPUs.
    specialise_after: int = 64
    specialise_most: int = 4  # such programs at a time, for each graph
    # What is done to a graph before fusion: `tw.passes()`, edited, or its text; None: the default
    passes: Pipeline | None = None
    # "search": a search among equal graphs, by proved rules, taken where it is measured faster
    optimize: str = ""
    # "strict": sums are added in the order of their definition, and nothing is folded that rounds
    precision: str = "reassociate"
    # Indices, divisors, probabilities: raise where eager would. False, or TILEWRIGHT_CHECK_DATA=0:
    # such inputs silently give some result; no memory but the program's own is touched.
    checks: bool = True
    # 16-bit results are rounded between operators, as eager's are; False: a kernel computes in
    # float32 and rounds what it stores
    round_between: bool = True
    # Every stage of the compile (passes, schedules, code) is judged against the one before it, by
    # proof or on random inputs; one that is wrong raises and is named. It takes seconds to minutes
    validate: bool = False
    # tw.compile of a module: weights live packed only, and give their own memory back
    own_weights: bool = False
    # How schedules are chosen: "default" (by rules), "early" (the same, but what can begins before
    # earlier kernels end: for one_kernel), "ranked" (by the target's cost model), "timed" (by
    # measuring) or "records" (by what `tilewright tune` found, else by rules); "auto": as
    # TILEWRIGHT_CHOOSE says. Kernels that were tuned have their records' schedules in any case.
    choose: str = "auto"
    tune_seconds: int = 0  # that timing may take per program; 0: as TILEWRIGHT_TUNE_SECONDS says
    # On a GPU: all kernels of a program are tasks of one, where that is possible. For chains of
    # many short kernels, such as a language model that makes one token.
    one_kernel: bool = False
    # Training: the part of the bytes that a forward pass keeps for its gradient which may be kept,
    # more than 0 and at most 1. The rest is computed again, what costs least time per byte first.
    # Below 1, memory that nobody needs any more goes back to the system during a step
    activation_memory: float = 1.0
    # Traces in place of default schedules, by the names that `tw.explain` gives to kernels.
    schedules: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def parse(given: Mapping[str, Any]) -> TorchOptions:
        fields = [f.name for f in dataclasses.fields(TorchOptions)]
        for name, value in given.items():
            if name not in fields:
                known = ", ".join(fields)
                raise Invalid(f"option {name!r} is not known", hint=f"the options are {known}")
            if name == "passes":
                continue
            default = getattr(TorchOptions(), name)
            if name == "activation_memory":
                _require_share(value)
                continue
            if type(value) is not type(default):
                raise Invalid(
                    f"option {name}={value!r} is not a {type(default).__name__}",
                    hint=f"the default is {default!r}",
                )
            if name in _CHOICES and value not in _CHOICES[name]:
                choices = " or ".join(map(repr, _CHOICES[name]))
                raise Invalid(f"option {name}={value!r} is not known", hint=f"it is {choices}")
        for name, least in _LEAST.items():
            if given.get(name, least) < least:
                raise Invalid(f"option {name} must be at least {least}")
        if "activation_memory" in given:
            given = {**given, "activation_memory": float(given["activation_memory"])}
        if given.get("passes") is not None:
            given = {**given, "passes": _fitting(given)}
        return TorchOptions(**given)


def _require_share(value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= 1:
        raise Invalid(
            f"option activation_memory={value!r} is not a number above 0 and up to 1",
            hint="it is the part of the memory between a forward pass and its gradient that may "
            "be kept: 0.5 for half, 1.0 (the default) for all of it",
        )


def _fitting(given: Mapping[str, Any]) -> Pipeline:
    """The given passes, which have to fit the other options."""
    default = TorchOptions()
    precision = given.get("precision", default.precision)
    own_weights = given.get("own_weights", default.own_weights)
    make = default_passes().chosen_passes
    return make(given["passes"], targets.default(), precision, own_weights)
