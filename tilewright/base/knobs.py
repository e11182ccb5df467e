"""Every environment switch, declared once: name, type, default, what it does.

Knobs are read at each `get`, not at import, so that a process can change them:

    jobs = knobs.compile_jobs.get()
    with knobs.threads.override(1): ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from .errors import Invalid

T = TypeVar("T")


@dataclass(frozen=True)
class Knob(Generic[T]):
    """One typed environment variable. `parse` raises ValueError with the form it expects."""

    name: str
    default: Callable[[], T]
    parse: Callable[[str], T]
    doc: str
    show: Callable[[T], str] = str

    def get(self) -> T:
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as problem:
            raise Invalid(
                f"{self.name}={text!r} is not understood: expected {problem}",
                hint=f"{self.name}: {self.doc}",
            ) from None

    def is_set(self) -> bool:
        return bool(os.environ.get(self.name, "").strip())

    def looker(self) -> Callable[[], object]:
        """A cheap test for code that runs thousands of times a second: true where the variable may
        have been set; `get` then gives its value."""
        # Python stores the variables encoded; `os.environ.get` encodes the name on every call.
        stored, encode = (getattr(os.environ, n, None) for n in ("_data", "encodekey"))
        if isinstance(stored, dict) and encode is not None:
            return partial(stored.get, encode(self.name))
        return partial(os.environ.get, self.name)

    @contextmanager
    def override(self, value: T | None) -> Iterator[None]:
        """Set the variable for the process (and its children) inside a `with`; None unsets it."""
        before = os.environ.get(self.name)
        self._write(None if value is None else self.show(value))
        try:
            yield
        finally:
            self._write(before)

    def _write(self, text: str | None) -> None:
        if text is None:
            os.environ.pop(self.name, None)
        else:
            os.environ[self.name] = text


@dataclass(frozen=True)
class LogLevels:
    """Which kinds of event are shown (`kinds`) and which in detail (`detailed`)."""

    kinds: frozenset[str] = frozenset()
    detailed: frozenset[str] = frozenset()

    def __str__(self) -> str:
        plain = self.kinds - self.detailed
        return ",".join(sorted(plain) + sorted(f"+{kind}" for kind in self.detailed))

    def shows(self, kind: str, *, detail: bool = False) -> bool:
        chosen = self.detailed if detail else self.kinds
        return "all" in chosen or _singular(kind) in chosen


def _singular(kind: str) -> str:
    # "recompiles" and "recompile" mean the same kind.
    return kind.removesuffix("s")


def _parse_logs(text: str) -> LogLevels:
    kinds: set[str] = set()
    detailed: set[str] = set()
    for item in text.split(","):
        kind = item.strip()
        bare = kind.removeprefix("+")
        if not bare or not bare.replace("-", "").replace("_", "").isalnum():
            raise ValueError("kinds separated by commas, such as fusion,recompiles,+schedule")
        kinds.add(_singular(bare))
        if kind.startswith("+"):
            detailed.add(_singular(bare))
    return LogLevels(frozenset(kinds), frozenset(detailed))


def _parse_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("0 or 1")


def _show_bool(value: bool) -> str:
    return "1" if value else "0"


def _at_least(low: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        expected = f"a whole number of at least {low}"
        try:
            value = int(text)
        except ValueError:
            raise ValueError(expected) from None
        if value < low:
            raise ValueError(expected)
        return value

    return parse


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return text

    return parse


def _matching(pattern: str, expected: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if re.fullmatch(pattern, text) is None:
            raise ValueError(expected)
        return text

    return parse


def _parse_optional_path(text: str) -> Path | None:
    return Path(text).expanduser()


def _parse_optional_name(text: str) -> str | None:
    return text


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that relative paths are ignored.
    root = Path(base) if os.path.isabs(base) else Path("~").expanduser() / ".cache"
    return root / "tilewright"


def _none() -> None:
    return None


cache_dir: Knob[Path] = Knob(
    "TILEWRIGHT_CACHE_DIR",
    _default_cache_dir,
    lambda text: Path(text).expanduser(),
    "directory of the compile cache (default: tilewright under the XDG cache directory)",
)
cache: Knob[bool] = Knob(
    "TILEWRIGHT_CACHE",
    lambda: True,
    _parse_bool,
    "0 turns the disk cache off",
    _show_bool,
)
cache_limit_mb: Knob[int] = Knob(
    "TILEWRIGHT_CACHE_LIMIT_MB",
    lambda: 2048,
    _at_least(1),
    "size in MiB beyond which the least recently used cache entries are removed",
)
records: Knob[Path | None] = Knob(
    "TILEWRIGHT_RECORDS",
    _none,
    _parse_optional_path,
    "file of schedules that tuning decided on (default: records.jsonl in the cache directory)",
)
logs: Knob[LogLevels] = Knob(
    "TILEWRIGHT_LOGS",
    LogLevels,
    _parse_logs,
    "kinds of event to show, such as fusion,recompiles,+schedule (+ for detail, all for all)",
)
dump: Knob[Path | None] = Knob(
    "TILEWRIGHT_DUMP",
    _none,
    _parse_optional_path,
    "directory in which each stage of a compilation is written as a file",
)
resume: Knob[Path | None] = Knob(
    "TILEWRIGHT_RESUME",
    _none,
    _parse_optional_path,
    "directory of dumped stages whose edited files replace what the compiler would have made",
)
threads: Knob[int | None] = Knob(
    "TILEWRIGHT_THREADS",
    _none,
    _at_least(1),
    "threads that run kernels (default: the cores this process may use)",
)
compile_jobs: Knob[int | None] = Knob(
    "TILEWRIGHT_COMPILE_JOBS",
    _none,
    _at_least(1),
    "kernels compiled at the same time (default: the cores this process may use)",
)
compile_processes: Knob[bool] = Knob(
    "TILEWRIGHT_COMPILE_PROCESSES",
    lambda: True,
    _parse_bool,
    "0 compiles all kernels in this process: large programs otherwise start others to help",
    _show_bool,
)
overlap: Knob[str] = Knob(
    "TILEWRIGHT_OVERLAP",
    lambda: "auto",
    _one_of("auto", "0", "1"),
    "1 lets every kernel of a CUDA graph begin before the one before it ends, where the GPU can; "
    "it waits before it reads anything; auto does so in programs whose products wait for memory",
)
choose: Knob[str] = Knob(
    "TILEWRIGHT_CHOOSE",
    lambda: "auto",
    _one_of("auto", "default", "early", "ranked", "timed", "records"),
    "how schedules are chosen: default (by rules), early (by rules for kernels that are one), "
    "ranked (by the target's cost model), timed (by measuring), records (by what `tilewright tune` "
    "found, else the rules), or auto (the cost model where its numbers were measured, else the "
    "rules); kernels that were tuned have the schedules of their records in any case",
)
tune_seconds: Knob[int] = Knob(
    "TILEWRIGHT_TUNE_SECONDS",
    lambda: 10,
    _at_least(1),
    "seconds that timing schedules may take per program, where schedules are timed",
)
check: Knob[bool] = Knob(
    "TILEWRIGHT_CHECK",
    lambda: False,
    _parse_bool,
    "1 runs the named checks of each level between passes",
    _show_bool,
)
regions: Knob[bool] = Knob(
    "TILEWRIGHT_REGIONS",
    lambda: True,
    _parse_bool,
    "0 applies passes and fusion to each of several equal regions of a graph, such as layers; "
    "what they make is the same",
    _show_bool,
)
plain_capture: Knob[bool] = Knob(
    "TILEWRIGHT_PLAIN_CAPTURE",
    lambda: True,
    _parse_bool,
    "0 passes all graphs to AOTAutograd, also those without gradients and changes in place",
    _show_bool,
)
one_step: Knob[bool] = Knob(
    "TILEWRIGHT_ONE_STEP",
    lambda: True,
    _parse_bool,
    "0 has torch trace all steps of a loop of Python one after the other",
    _show_bool,
)
straight_calls: Knob[bool] = Knob(
    "TILEWRIGHT_STRAIGHT_CALLS",
    lambda: True,
    _parse_bool,
    "0 takes the steps from tensors to native code in Python, where each can be watched",
    _show_bool,
)
data_sizes: Knob[bool] = Knob(
    "TILEWRIGHT_DATA_SIZES",
    lambda: True,
    _parse_bool,
    "0 breaks graphs where only data decides the size of a result, unless torch's own setting "
    "(capture_dynamic_output_shape_ops) says otherwise",
    _show_bool,
)
checks: Knob[bool] = Knob(
    "TILEWRIGHT_CHECK_DATA",
    lambda: True,
    _parse_bool,
    "0 leaves out the checks that compiled programs make of their data: indices within bounds, "
    "divisors other than 0, probabilities (as does the option checks=False)",
    _show_bool,
)
memory_mb: Knob[int | None] = Knob(
    "TILEWRIGHT_MEMORY_MB",
    _none,
    _at_least(1),
    "MiB that a program may allocate at once (default: what the system has available)",
)
keep_pages: Knob[bool] = Knob(
    "TILEWRIGHT_KEEP_PAGES",
    lambda: True,
    _parse_bool,
    "0 gives the memory of training steps (what is kept for gradients, and gradients) back to the "
    "system after each step; otherwise the next step finds its pages in place",
    _show_bool,
)
target: Knob[str | None] = Knob(
    "TILEWRIGHT_TARGET",
    _none,
    _parse_optional_name,
    "name of the target to compile for instead of this machine, such as x86-64-v3",
)
interpret: Knob[bool] = Knob(
    "TILEWRIGHT_INTERPRET",
    lambda: False,
    _parse_bool,
    "1 runs tile kernels step by step in Python (print, breakpoints) instead of compiling them",
    _show_bool,
)
tile_check: Knob[bool] = Knob(
    "TILEWRIGHT_CHECK_TILES",
    lambda: False,
    _parse_bool,
    "1 runs tile kernels step by step and reports accesses out of bounds, values that were never "
    "defined and races between programs, with the lines they come from",
    _show_bool,
)
bench_points: Knob[int | None] = Knob(
    "TILEWRIGHT_BENCH_POINTS",
    _none,
    _at_least(1),
    "points of each sweep that perf_report measures, the first ones (default: all)",
)
triton_device: Knob[str | None] = Knob(
    "TILEWRIGHT_TRITON_DEVICE",
    _none,
    _one_of("cpu"),
    "cpu: scripts run with Tilewright in Triton's place get CPU tensors where they create GPU ones",
)
triton_backend: Knob[str | None] = Knob(
    "TILEWRIGHT_TRITON_BACKEND",
    _none,
    _matching(
        r"cpu|(cuda|hip)(:\w+)?", "cpu, cuda, hip, or one of these with its architecture, cuda:90"
    ),
    "the back end that scripts run with Tilewright in Triton's place, and their kernels, see, such "
    "as cuda:90 (default: cpu); the code is compiled for the CPU in any case",
)
triton_checkout: Knob[Path | None] = Knob(
    "TILEWRIGHT_TRITON_CHECKOUT",
    _none,
    _parse_optional_path,
    "directory of Triton's sources, for helpers of its tests that are not part of the language",
)


def every() -> tuple[Knob, ...]:
    """All knobs in the order of declaration, for documentation and the command line."""
    return tuple(value for value in globals().values() if isinstance(value, Knob))


def records_file() -> Path:
    """Where schedules that tuning decided on are kept."""
    return records.get() or cache_dir.get() / "records.jsonl"


def records_stamp() -> str:
    """What changes when that file does; nothing where there is none."""
    try:
        found = records_file().stat()
    except OSError:
        return ""
    return f"{found.st_mtime_ns} {found.st_size}"
