"""Ranges of a tile kernel's constants (`tw.autotune(space=…)`): a search says which configurations
to time next. It is one of those that tune schedules; a point is a configuration, and the same
measurements lead to the same proposals, so that times on disk are found again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from tilewright.base.errors import Invalid, require
from tilewright.base.events import Log
from tilewright.driver.tile.config import Config, Launch, Timings
from tilewright.driver.tile.jit import JITFunction
from tilewright.driver.tile.progress import Shown
from tilewright.tune.choosing import Values, choice
from tilewright.tune.models.additive import additive
from tilewright.tune.search import search_named
from tilewright.tune.search.state import Measured, Progress
from tilewright.tune.space.decision import Assignment, Decision, Plain
from tilewright.tune.space.space import Space

# What a configuration says besides constants.
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
# Configurations that are timed beside each other.
BATCH = 8
# Assignments at random until one is legal.
MOST_DRAWS = 64


class Tuner(Protocol):
    """What times configurations, and knows which a user's functions keep: `Autotuner`."""

    configs: list[Config]
    perf_model: Callable[..., Any] | None
    log: Log

    @property
    def jit_function(self) -> JITFunction[Any]: ...

    def kept(
        self, configs: list[Config], named: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> list[Config]: ...

    def likely(
        self, configs: list[Config], named: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> list[Config]: ...

    def identity(self, config: Config, launch: Launch) -> tuple[Hashable, ...]: ...

    def measure(
        self, configs: Sequence[Config], launch: Launch, found: Timings, shown: Shown
    ) -> None: ...


@dataclass(frozen=True)
class Pick:
    """A configuration as a point of a space; those with the same `key` are one kernel here."""

    given: Assignment
    config: Config
    key: Hashable


@dataclass(frozen=True)
class Ranges(Space):
    """Decisions that are constants and options of a kernel: there are no steps."""

    trials: int
    way: str

    @classmethod
    def of(
        cls, space: Mapping[str, Any], function: JITFunction[Any], trials: int, search: str
    ) -> Ranges:
        where = f"{function.file}:{function.line}"
        constants = [p.name for p in function.parameters if p.is_constexpr]
        require(space, f"autotune: the space of {function.name} is empty", where=where)
        require(trials >= 1, f"autotune: {trials} trials find nothing", hint="1 or more")
        search_named(search)  # or a word about it
        decisions = []
        for name, values in space.items():
            if name not in constants and name not in OPTIONS:
                raise Invalid(
                    f"autotune: {name} is no constant of {function.name}",
                    where=where,
                    hint=f"those are {', '.join((*constants, *OPTIONS))}",
                )
            found = values if isinstance(values, Values) else choice(_listed(name, values))
            decisions.append(found.named(name))
        return cls(tuple(decisions), (), trials, search)

    def relevant(self, given: Assignment) -> Assignment:
        return dict(given)

    def listed(self, configs: Sequence[Config]) -> list[Config]:
        """The configurations to begin with; the space's defaults where they do not name a constant,
        or where there are none."""
        constants = {n: v for n, v in self.default.items() if n not in OPTIONS}
        named = [_with(c, {**constants, **c.kwargs}) for c in configs]
        return named or [_with(Config({}), self.default)]

    def given(self, config: Config) -> Assignment | None:
        """The assignment that a configuration is; None where it lies outside."""
        said = config.all_kwargs()
        found = {n: said.get(n) for n in self.named}
        inside = all(
            any(type(v) is type(x) and v == x for v in self.named[n].values)
            for n, x in found.items()
        )
        return {n: x for n, x in found.items() if x is not None} if inside else None

    def search(self, tuner: Tuner, launch: Launch, found: Timings, shown: Shown) -> None:
        """Times the listed configurations, then what the search proposes."""
        state = _State(self, Random(0), tuner, launch)
        first = tuner.kept(tuner.configs, launch.named, launch.kwargs)
        configs = tuner.likely(first, launch.named, launch.kwargs) if first else []
        by = search_named(self.way)
        while True:
            if configs:
                tuner.measure(configs, launch, found, shown)
                state.learn(configs, found)
            left = self.trials - len(state.seen)
            configs = [p.config for p in by.propose(state, min(BATCH, left))] if left > 0 else []
            if not configs:
                break
        if not found.times:
            raise Invalid(
                f"autotune: early_config_prune leaves no configuration in the space of "
                f"{tuner.jit_function.name}",
                hint="it is given configurations one by one, and has to keep some",
            )


@dataclass
class _State(Progress[Pick]):
    """The search for one kind of launch."""

    space: Space
    rng: Random
    tuner: Tuner
    launch: Launch
    measured: list[Measured[Pick]] = field(default_factory=list)
    seen: set[Hashable] = field(default_factory=set)
    _known: dict[tuple[Plain, ...], Pick | None] = field(default_factory=dict)

    def draw(self, prefer: Callable[[Decision], Sequence[Plain]] | None = None) -> Pick | None:
        for _ in range(MOST_DRAWS):
            given = (
                self.space.random(self.rng)
                if prefer is None
                else {d.name: prefer(d)[0] for d in self.space.decisions}
            )
            found = self.point(given)
            if found is not None:
                return found
        return None

    def point(self, given: Assignment) -> Pick | None:
        """The configuration of an assignment, if the user's function keeps it."""
        given = self.space.complete(given)
        key = tuple(given.values())
        if key not in self._known:
            config = _with(self.tuner.configs[0], given)
            known = Pick(given, config, self.tuner.identity(config, self.launch))
            self._known[key] = known if self._keeps(config) else None
        return self._known[key]

    def _keeps(self, config: Config) -> bool:
        """A function that is written for lists may not expect that it leaves nothing."""
        try:
            return config in self.tuner.kept([config], self.launch.named, self.launch.kwargs)
        except Exception as problem:
            said = f"early_config_prune of {config} alone: {type(problem).__name__}: {problem}"
            self.tuner.log.add("autotune", said)
            return False

    def scores(self, points: Sequence[Pick]) -> Sequence[float]:
        model = self.tuner.perf_model
        if model is None:
            return additive(points, self.measured)
        given = {**self.launch.named, **self.launch.kwargs}
        return [float(model(**{**given, **p.config.all_kwargs()})) for p in points]

    def learn(self, configs: Sequence[Config], found: Timings) -> None:
        """What was measured; the first that has a time is what others are relative to."""
        usual = next((t[0] for t in found.times.values() if t[0] < float("inf")), 1.0)
        for c in configs:
            key = self.tuner.identity(c, self.launch)
            assert isinstance(self.space, Ranges)
            given = self.space.given(c)
            if key not in self.seen and given is not None:
                ratio = None if c in found.problems else found.times[c][0] / max(usual, 1e-9)
                self.measured.append(Measured(Pick(given, c, key), ratio))
            self.seen.add(key)


def _with(config: Config, given: Mapping[str, Any]) -> Config:
    """A configuration with other constants and options."""
    kept = {n: given.get(n, getattr(config, n)) for n in OPTIONS}
    constants = {n: v for n, v in given.items() if n not in OPTIONS}
    return Config(
        {**config.kwargs, **constants},
        **kept,
        pre_hook=config.pre_hook,
        ir_override=config.ir_override,
    )


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise Invalid(
            f"autotune: the space of {name} is {values!r}, which is no list",
            hint=f'such as space={{"{name}": [16, 32, 64]}} or tune.factors(64)',
        )
    return list(values)
