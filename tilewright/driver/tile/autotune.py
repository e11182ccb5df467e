"""`tw.autotune`, `tw.Config`, `tw.heuristics`: constants of a kernel that are chosen, not given.

Times are cached on disk one by one: per kernel, machine, key and configuration. When a
configuration is added to the list, only that one is timed. Configurations that differ only in
options for a GPU (its warps, its stages) are one kernel on a processor: it is compiled and timed
once. On a GPU they are several, timed by its own clock. Configurations take turns while they are
timed. Where a space is given, a search proposes more of them (`ranges.py`).
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any

from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.events import Log
from tilewright.base.untraced import untraced
from tilewright.driver.tile.config import Config, Launch, Times, Timings
from tilewright.driver.tile.devices import GPU, gpu_among
from tilewright.driver.tile.jit import JITFunction, KernelInterface
from tilewright.driver.tile.launch import executor
from tilewright.driver.tile.progress import Shown
from tilewright.driver.tile.testing import ROUNDS, do_bench, in_turns, quantile
from tilewright.lang.tile.front.diagnostics import StaticAssertionError
from tilewright.lang.tile.front.functions import ConstexprFunction, TileFunction
from tilewright.runtime.pool import get_threads
from tilewright.targets import host

_KIND = "tile-times"
QUANTILES = (0.5, 0.2, 0.8)
FAILED: Times = (float("inf"), float("inf"), float("inf"))
# Callbacks that get the result of each tuning.
LISTENERS: dict[str, Callable[..., Any]] = {}
# Configurations of the last race, beside the first that is listed, and how much longer it is.
FINALISTS = 3
LONGER = 4
_RANGES = "tilewright.driver.tile.ranges"  # loaded where a space is given


class Autotuner(KernelInterface[Any]):
    """A kernel whose configuration is the fastest of several for the kind of arguments at hand."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Iterable[str] | None = None,
        restore_value: Iterable[str] | None = None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: float | None = None,
        rep: float | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = True,
        space: Mapping[str, Any] | None = None,
        trials: int = 32,
        search: str = "evolution",
    ):
        self.fn = fn
        self.arg_names = list(arg_names)
        self.configs = list(configs)
        self.keys = [key] if isinstance(key, str) else list(key)
        self.reset_to_zero = list(reset_to_zero or ())
        self.restore_value = list(restore_value or ())
        # A key that names no parameter is ignored, as in Triton: lists of keys are shared.
        for name in (*self.reset_to_zero, *self.restore_value):
            if name not in self.arg_names:
                raise Invalid(
                    f"autotune: {self.jit_function.name} has no parameter {name}",
                    where=f"{self.jit_function.file}:{self.jit_function.line}",
                    hint=f"its parameters are {', '.join(self.arg_names)}",
                )
        self.ranges: Any = None
        if space is not None:
            self.ranges = import_module(_RANGES).Ranges.of(space, self.jit_function, trials, search)
            self.configs = self.ranges.listed(self.configs)
        self.configs = self.configs or [Config({})]
        pruning = dict(prune_configs_by or {})
        self.perf_model = pruning.get("perf_model")
        self.configs_top_k = pruning.get("top_k", 1.0)
        self.early_config_prune = pruning.get("early_config_prune")
        self.user_defined_pre_hook = pre_hook is not None
        self.user_defined_post_hook = post_hook is not None
        self.pre_hook = pre_hook or self._reset
        self.post_hook = post_hook or self._restore
        self.num_warmups, self.num_reps = warmup, rep
        self.use_cuda_graph = use_cuda_graph
        self.cache_results = cache_results
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.configs_timings: dict[Config, Times] = {}
        self.best_config: Config = self.configs[0]  # of the last launch
        self.bench_time = 0.0
        self.log = Log()
        self._do_bench = do_bench
        self._copies: dict[str, Any] = {}
        self._lock = threading.RLock()

    nargs: Mapping[str, Any] | None = None  # arguments of the launch, in tuners of libraries

    @property
    def jit_function(self) -> JITFunction[Any]:
        found = self.fn
        while not isinstance(found, JITFunction):
            found = found.fn
        return found

    @property
    def base_fn(self) -> Callable[..., Any]:
        return self.jit_function.fn

    @untraced
    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return self._warmed(args, grid, kwargs)
        named = dict(zip(self.arg_names, args, strict=False))
        alone = len(self.configs) == 1 and self.ranges is None
        config = self.configs[0] if alone else self._chosen(args, named, grid, kwargs)
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**named, **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, grid=grid, **{**kwargs, **config.all_kwargs()})

    def _warmed(self, args: Sequence[Any], grid: Any, kwargs: Mapping[str, Any]) -> list[Any]:
        named = dict(zip(self.arg_names, args, strict=False))
        return [
            self.fn.run(*args, grid=grid, warmup=True, **{**kwargs, **c.all_kwargs()})
            for c in self.prune_configs(kwargs, named)
        ]

    def _key(self, named: Mapping[str, Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        given = {k: v for k, v in {**named, **kwargs}.items() if k in self.arg_names}
        values = [_keyed(given[k]) for k in self.keys if k in given]
        tensors = [v for v in given.values() if hasattr(v, "dtype")]
        gpu = gpu_among(tensors)
        where = () if gpu is None else (f"cuda:{gpu}",)
        return (*values, *(v.dtype for v in tensors), *where)

    def _chosen(
        self, args: Sequence[Any], named: Mapping[str, Any], grid: Any, kwargs: Mapping[str, Any]
    ) -> Config:
        key = self._key(named, kwargs)
        found = self.cache.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self.cache:
                launch = Launch(args, named, grid, kwargs, key)
                self.cache[key] = self._decided(launch)
            return self.cache[key]

    def _decided(self, launch: Launch) -> Config:
        start = time.perf_counter()
        found = Timings(usual=self.configs[0])
        if self.ranges is None:
            configs = self.prune_configs(launch.kwargs, launch.named)
            if len(configs) == 1:
                return configs[0]
            with Shown(self.jit_function.name) as shown:
                self.measure(configs, launch, found, shown)
                self._last_race(launch, found, shown)
        else:
            with Shown(self.jit_function.name) as shown:
                self.ranges.search(self, launch, found, shown)
                self._last_race(launch, found, shown)
        return self._told(found, launch, start)

    def _last_race(self, launch: Launch, found: Timings, shown: Shown) -> None:
        """Those that are close take turns for longer: of many that are alike, the fastest by a few
        calls is the luckiest. Of a list, a user's own function times each once."""
        if self._do_bench is not None and self.ranges is None:
            return
        close = found.close(FINALISTS)
        kernels = {self.identity(c, launch): c for c in reversed(close)}
        if len(kernels) > 1:
            found.last = [c for c in close if c in kernels.values()]
            self.measure(found.last, launch, found, shown, final=True)

    def prune_configs(
        self, kwargs: Mapping[str, Any], named: Mapping[str, Any] | None = None
    ) -> list[Config]:
        """The configurations worth timing for these arguments."""
        named = named or self.nargs or {}
        configs = self.kept(self.configs, named, kwargs)
        if not configs:
            raise Invalid(
                f"autotune: early_config_prune leaves no configuration of {self.jit_function.name}",
                hint="it has to give back at least one",
            )
        return self.likely(configs, named, kwargs)

    def kept(
        self, configs: list[Config], named: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> list[Config]:
        """Those that the user's function keeps."""
        if self.early_config_prune is None:
            return configs
        return list(self.early_config_prune(configs, dict(named), **kwargs))

    def likely(
        self, configs: list[Config], named: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> list[Config]:
        """The best of them by the user's model, if there is one."""
        model = self.perf_model
        if model is None:
            return configs
        top = self.configs_top_k
        if isinstance(top, float) and top <= 1.0:
            top = max(1, int(len(configs) * top))
        if not isinstance(top, int):
            raise Invalid(f"autotune: top_k of {top!r}", hint="an int, or a share up to 1.0")
        return sorted(configs, key=lambda c: model(**{**named, **kwargs, **c.all_kwargs()}))[:top]

    # ---- timing

    def measure(
        self,
        configs: Sequence[Config],
        launch: Launch,
        found: Timings,
        shown: Shown,
        final: bool = False,
    ) -> None:
        """Times configurations beside each other, or reads times from the disk. Those of a `final`
        race are kept apart: they are compared with nothing but each other."""
        conflicts = sorted({k for c in configs for k in c.kwargs} & launch.kwargs.keys())
        if conflicts:
            raise Invalid(
                f"{self.jit_function.name} is given {', '.join(conflicts)}, which autotune chooses",
                hint="leave them out of the call",
            )
        cache = Cache.from_knobs(self.log) if self.cache_results else None
        about = self._about(launch.key, launch.gpu)
        if final:
            about.append(f"beside {sorted(self._here(c, launch.gpu) for c in configs)}")
        todo: list[tuple[str, list[Config]]] = []
        for alike in self._alike(configs, launch):
            entry = json.dumps([*about, self._here(alike[0], launch.gpu)])
            known = None if cache is None or alike[0].pre_hook else _read(cache, entry)
            found.times.update(dict.fromkeys(alike, known or FAILED))
            if known is None:
                todo.append((entry, alike))
        first = [alike[0] for _, alike in todo]
        self._make(first, launch, shown)
        times = self._times(first, launch, shown, LONGER if final else 1)
        for (entry, alike), took in zip(todo, times, strict=True):
            if isinstance(took, TilewrightError):
                found.problems.update(dict.fromkeys(alike, took))
                continue
            found.timed += 1
            found.times.update(dict.fromkeys(alike, took))
            if cache is not None and not alike[0].pre_hook:
                cache.put(_KIND, entry, json.dumps(took).encode())

    def _times(
        self, configs: Sequence[Config], launch: Launch, shown: Shown, longer: int
    ) -> list[Times | TilewrightError]:
        calls = [
            self._call(launch.args, launch.named, launch.grid, launch.kwargs, c) for c in configs
        ]
        if self._do_bench is None:
            warmup, rep = self._budget
            rounds = longer * ROUNDS
            shown.begin("timing", rounds)
            found = in_turns(calls, warmup, longer * rep, shown.advance, rounds)
            return [_summary(x) if isinstance(x, list) else x for x in found]
        shown.begin("timing", len(calls))
        out: list[Times | TilewrightError] = []
        for call in calls:  # by the user's function, which times one
            try:
                out.append(self._benched(call))
            except TilewrightError as problem:
                out.append(problem)
            shown.advance()
        return out

    def _told(self, found: Timings, launch: Launch, start: float) -> Config:
        """The fastest; whoever wants to know is told."""
        best, timings = found.best, found.times
        for c, problem in found.problems.items():
            self.log.add("autotune", f"{self.jit_function.name}: {c} fails: {problem}")
        self.configs_timings = timings
        self.bench_time = time.perf_counter() - start
        if found.timed:
            given = {**launch.named, **launch.kwargs, **best.all_kwargs()}
            self.pre_hook(given, reset_only=True)
        self.log.add(
            "autotune",
            f"{self.jit_function.name} for {launch.key}: {best} ({timings[best][0]:.4g} ms; "
            f"{len(timings)} configurations, {found.timed} timed in {self.bench_time:.2f} s)",
            where=f"{self.jit_function.file}:{self.jit_function.line}",
        )
        for listener in LISTENERS.values():
            listener(
                fn=self.jit_function,
                key=launch.key,
                best_config=best,
                configs_timings=timings,
                duration=self.bench_time if found.timed else None,
                cache_hit=not found.timed,
            )
        return best

    def _here(self, config: Config, gpu: int | None = None) -> str:
        """What of a configuration changes a kernel here: how a GPU shares out work does there."""
        names = self.arg_names if gpu is None else (*self.arg_names, "num_warps", "num_stages")
        chosen = {n: v for n, v in config.all_kwargs().items() if n in names}
        return ", ".join(
            f"{n}: {_constant_text(v)}" for n, v in {**config.kwargs, **chosen}.items()
        )

    def identity(self, config: Config, launch: Launch) -> tuple[Hashable, ...]:
        """What is the same for configurations that launch the same kernel over the same grid."""
        over = launch.grid
        if callable(over):
            try:
                over = repr(over({**launch.named, **launch.kwargs, **config.all_kwargs()}))
            except Exception:  # the launch raises the error
                over = id(config)
        return self._here(config, launch.gpu), config.pre_hook, over

    def _alike(self, configs: Sequence[Config], launch: Launch) -> list[list[Config]]:
        """The configurations, those together that are the same here."""
        groups: dict[Any, list[Config]] = {}
        for c in configs:
            groups.setdefault(self.identity(c, launch), []).append(c)
        return list(groups.values())

    def _make(self, configs: Sequence[Config], launch: Launch, shown: Shown) -> None:
        """Compile before anything is timed, several at once: nothing else may run while timing."""
        jobs = knobs.compile_jobs.get() or host().cores or 1
        # Hooks change arguments, and with them maybe the kernel: those compile when they run.
        free = [c for c in configs if c.pre_hook is None]
        if jobs == 1 or len(free) < 2 or executor().wants_given:
            return
        shown.begin("compiling", len(free))

        def make(c: Config) -> None:
            with suppress(Exception):  # raised again when it is timed
                given = {**launch.kwargs, **c.all_kwargs()}
                self.fn.run(*launch.args, grid=launch.grid, warmup=True, **given)

        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(make, free):
                shown.advance()

    def _about(self, key: tuple[Any, ...], gpu: int | None = None) -> list[str]:
        """What times depend on besides the configuration."""
        who = executor().name
        if gpu is not None:
            return [self.jit_function.hash(), *import_module(GPU).described(gpu), repr(key)]
        return [self.jit_function.hash(), str(host()), str(get_threads()), who, repr(key)]

    def _bench(self, *args: Any, config: Config, grid: Any, **meta: Any) -> list[float]:
        """Times of a launch, for tuners of libraries that are made of this one: they choose
        configurations themselves. One whose assertions fail has an infinite time."""
        conflicts = meta.keys() & config.kwargs.keys()
        if conflicts:
            raise Invalid(
                f"{self.jit_function.name} is launched with {', '.join(sorted(conflicts))}, which "
                "its configurations choose",
                hint="leave it out of the launch",
            )
        named = dict(zip(self.arg_names, args, strict=False))
        try:
            return list(self._benched(self._call(args, named, grid, meta, config)))
        except StaticAssertionError:
            return [math.inf] * 3

    @property
    def do_bench(self) -> Callable[..., Any]:
        return self._do_bench or do_bench

    def _call(
        self,
        args: Sequence[Any],
        named: Mapping[str, Any],
        grid: Any,
        kwargs: Mapping[str, Any],
        config: Config,
    ) -> Callable[[], None]:
        """A launch between the hooks of whoever tunes."""
        given = {**kwargs, **config.all_kwargs()}
        everything = {**named, **given}

        def call() -> None:
            if config.pre_hook is not None:
                config.pre_hook(everything)
            self.pre_hook(everything)
            try:
                self.fn.run(*args, grid=grid, **given)
            except Exception as problem:
                self.post_hook(everything, exception=problem)
                raise
            self.post_hook(everything, exception=None)

        return call

    @property
    def _budget(self) -> tuple[float, float]:
        """Milliseconds before and while a configuration is timed."""
        warmup = 10 if self.num_warmups is None else self.num_warmups
        return warmup, 40 if self.num_reps is None else self.num_reps

    def _benched(self, call: Callable[[], None]) -> Times:
        """Of one launch, by itself."""
        if self._do_bench is not None:
            low = self._do_bench(call, quantiles=QUANTILES)
        else:
            warmup, rep = self._budget
            low = do_bench(call, warmup=warmup, rep=rep, quantiles=QUANTILES, flush=False)
        times = list(low) if isinstance(low, (list, tuple)) else [low] * 3
        return (float(times[0]), float(times[1]), float(times[2]))

    def _reset(self, given: Mapping[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            _fill_with_zero(given.get(name))
        if not reset_only:
            self._copies = {
                name: _copied(given[name])
                for name in self.restore_value
                if given.get(name) is not None
            }

    def _restore(self, given: Mapping[str, Any], exception: Exception | None = None) -> None:
        for name, value in self._copies.items():
            _write(given[name], value)
        self._copies = {}


def _summary(samples: list[float]) -> Times:
    middle, low, high = (quantile(samples, q) for q in QUANTILES)
    return middle, low, high


def _read(cache: Cache, entry: str) -> Times | None:
    payload = cache.get(_KIND, entry)
    if payload is None:
        return None
    middle, low, high = json.loads(payload)
    return middle, low, high


def _constant_text(value: Any) -> str:
    """A text that identifies a constant: for a function its source, not its name."""
    if isinstance(value, (TileFunction, ConstexprFunction)):
        return value.hash()
    return repr(value)


def _keyed(value: Any) -> Any:
    """What of an argument decides: its value, or the shape of a tensor."""
    shape = getattr(value, "shape", None)
    return value if shape is None else tuple(shape)


def _fill_with_zero(x: Any) -> None:
    if x is not None:
        x.zero_() if hasattr(x, "zero_") else x.fill(0)


def _copied(x: Any) -> Any:
    return x.clone() if hasattr(x, "clone") else x.copy()


def _write(x: Any, value: Any) -> None:
    if hasattr(x, "copy_"):
        x.copy_(value)
    else:
        x[...] = value


def autotune(
    configs: Sequence[Config] = (),
    key: Sequence[str] = (),
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Iterable[str] | None = None,
    restore_value: Iterable[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = True,
    *,
    space: Mapping[str, Any] | None = None,
    trials: int = 32,
    search: str = "evolution",
) -> Callable[[Any], Autotuner]:
    """Times configurations of a kernel whenever the parameters in `key` have new values (or tensors
    another dtype), and launches the fastest.

    A kernel runs many times while it is timed: tensors named in `reset_to_zero` are cleared before
    each run, those in `restore_value` get their values back. `prune_configs_by` may hold
    `early_config_prune(configs, arguments, **kwargs)`, and `perf_model(**arguments)` with `top_k`.
    Times are cached on disk unless `cache_results` is False.

    `space` has ranges of constants, and of `num_warps` and the like: lists, `tune.factors(256)`,
    `tune.choice`, `tune.flag`. A search (those of `tilewright tune`) proposes configurations, the
    listed ones first, until `trials` are timed. What it does not mention is as in the first
    configuration. One that `early_config_prune` does not keep, or that fails, is left out, and
    `perf_model` says which are worth timing.
    """

    def decorated(fn: Any) -> Autotuner:
        return Autotuner(
            fn,
            fn.arg_names,
            configs,
            key,
            reset_to_zero,
            restore_value,
            pre_hook,
            post_hook,
            prune_configs_by,
            warmup,
            rep,
            use_cuda_graph,
            do_bench,
            cache_results,
            space,
            trials,
            search,
        )

    return decorated


class Heuristics(KernelInterface[Any]):
    """A kernel some of whose constants are computed from its arguments."""

    def __init__(self, fn: Any, arg_names: Sequence[str], values: Mapping[str, Callable[..., Any]]):
        self.fn = fn
        self.arg_names = list(arg_names)
        self.values = dict(values)

    @untraced
    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        named = dict(zip(self.arg_names, args, strict=False))
        for name, compute in self.values.items():
            kwargs[name] = compute({**named, **kwargs})
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)


def heuristics(values: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    """Computes constants of a kernel: each function takes a dict of the arguments by name."""
    return lambda fn: Heuristics(fn, fn.arg_names, values)
