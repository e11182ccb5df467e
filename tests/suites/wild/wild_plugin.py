"""A plugin of pytest that writes what became of each case, and which kernels it launched.

One line of JSON per event: `collected`, `begin` and `end` of a case, `broken` for a file that
cannot be imported. Whoever started the process reads them as they come, and knows which case ran
when the process died.
"""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
from standins import NotHere

from tilewright.base.errors import TilewrightError
from tilewright.driver.tile.autotune import Autotuner, Config
from tilewright.driver.tile.jit import JITFunction

PACKAGE = str(Path(__file__).parents[3] / "tilewright")
# Their frames are those of whoever called torch.
THROUGH = (str(Path(PACKAGE) / "triton" / "redirect.py"),)


class OverTime(BaseException):
    """A case took longer than it may. No handler for `Exception` may catch it."""


class Recorder:
    """`most` is how many cases of a test are wanted: one that skips itself is no such case, and
    the next larger one is taken."""

    def __init__(
        self,
        record: Path,
        done: set[str],
        limit: float,
        sources: list[str],
        most: int,
        size: Callable[[pytest.Item], int],
        configs: int,
        skip: int,
    ) -> None:
        self.sources = tuple(sources)
        self.most, self.size = most, size
        self.outcome: dict[str, Any] = {}
        self.ran: Counter[str] = Counter(map(_test_of, done))
        self.file = record.open("a")
        self.done = done
        self.limit = limit
        self.launched: dict[tuple[str, str], None] = {}
        self.current: tuple[str, str] | None = None
        self._watch_launches()
        if configs:
            self._try_few(configs, skip)

    def say(self, event: str, **more: Any) -> None:
        self.file.write(json.dumps({"event": event, **more}) + "\n")
        self.file.flush()

    # ---- which kernels run

    def _watch_launches(self) -> None:
        items, run = JITFunction.__getitem__, JITFunction.run

        def noted(kernel: Any) -> None:
            key = (kernel.file, kernel.name)
            if key in self.launched:
                self.launched.pop(key)  # the last one launched comes last
            else:
                self.say("launch", kernel=key)  # it may be the last that this process does
            self.launched[key] = None

        def get(kernel: Any, grid: Any) -> Any:
            launch = items(kernel, grid)

            def launched(*args: Any, **kwargs: Any) -> Any:
                noted(kernel)
                return launch(*args, **kwargs)

            return launched

        def ran(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            noted(kernel)
            return run(kernel, *args, **kwargs)

        JITFunction.__getitem__ = get  # type: ignore[method-assign]
        JITFunction.run = ran  # type: ignore[method-assign]

    def _try_few(self, most: int, skip: int) -> None:
        """Of an autotuner's configurations the smallest after `skip` of them: which is fastest is
        no question here. Where there are fewer, counting begins again."""
        pruned = Autotuner.prune_configs

        def few(tuner: Any, *args: Any, **kwargs: Any) -> list[Config]:
            each: dict[str, Config] = {}  # those that differ in warps and stages are one here
            for config in pruned(tuner, *args, **kwargs):
                each.setdefault(repr(config.kwargs), config)
            found = sorted(each.values(), key=_size_of)
            first = skip % len(found) if found else 0
            return found[first : first + most]

        Autotuner.prune_configs = few  # type: ignore[method-assign]

    # ---- which cases run

    def enough(self, item: pytest.Item) -> bool:
        """Did as many cases of the test run as are wanted?"""
        return self.most > 0 and self.ran[_test_of(name_of(item))] >= self.most

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        left = [item for item in items if name_of(item) not in self.done]
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        if self.most:
            places = {_test_of(name_of(item)): k for k, item in reversed(list(enumerate(left)))}
            left.sort(key=lambda item: (places[_test_of(name_of(item))], self.size(item)))
        items[:] = left
        self.say("collected", cases=[name_of(item) for item in items])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            text = str(report.longrepr).strip().splitlines()
            why = next((x[2:] for x in reversed(text) if x.startswith("E ")), text[-1])
            self.say("broken", file=Path(report.nodeid).name, why=why.strip())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if self.enough(item):
            self.say("spare", case=name_of(item))
            return (yield)
        self.launched.clear()
        self.say("begin", case=name_of(item))
        began = time.monotonic()
        self.outcome = {"result": "right"}
        # Of the processor, not of the clock: others may use this machine too.
        signal.signal(signal.SIGPROF, _over)
        signal.setitimer(signal.ITIMER_PROF, self.limit)
        try:
            return (yield)
        except OverTime:
            self.outcome = {"result": "slow", "why": f"more than {self.limit:g} s"}
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            seconds = round(time.monotonic() - began, 2)
            kernels = list(self.launched)
            # Some return where others skip themselves: neither says anything of a kernel.
            tried = kernels or self.outcome["result"] not in ("skipped", "right")
            self.ran[_test_of(name_of(item))] += bool(tried)
            self.say("end", case=name_of(item), seconds=seconds, kernels=kernels, **self.outcome)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: Any
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and self.outcome.get("result") == "right":
            if report.skipped:
                self.outcome = {"result": "skipped", "why": _skipped(report)}
            elif report.failed:
                self.outcome = self._failure(call.excinfo.value)
        return report

    def _failure(self, error: BaseException) -> dict[str, Any]:
        place = _place(error)
        found: dict[str, Any] = {"error": type(error).__name__, "place": place}
        first = str(error).strip().splitlines()[:12] or [type(error).__name__]
        chain = list(_chain(error))
        ours = next((e for e in chain if isinstance(e, TilewrightError)), None)
        if isinstance(error, OverTime):
            return {"result": "slow", "why": f"more than {self.limit:g} s", **found}
        if any(isinstance(e, NotHere) for e in chain):
            stood = next(e for e in chain if isinstance(e, NotHere))
            return {"result": "not run", "why": str(stood), **found}
        if ours is not None:
            return {"result": "refused", "why": str(ours), **found}
        if _inside(error):
            return {"result": "crashed", "why": f"{type(error).__name__}: {first[0]}", **found}
        compared = any(isinstance(e, AssertionError) and not self._asked(e) for e in chain)
        if compared and self.launched:
            return {"result": "wrong", "why": "\n".join(first), **found}
        return {"result": "not run", "why": f"{type(error).__name__}: {first[0]}", **found}

    def _asked(self, error: BaseException) -> bool:
        """Is it an assertion of the library about what it is given, not one of a test?"""
        place = _place(error).rpartition(":")[0]
        return place.startswith(self.sources) and "test" not in place.replace(self.sources[0], "")


class Spares:
    """A plugin that leaves out cases of which there are enough."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.recorder.enough(item):
            pytest.skip("enough cases of this test")


def name_of(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def _test_of(case: str) -> str:
    return case.partition("[")[0]


def _size_of(config: Config) -> int:
    """How large its tiles are, more or less."""
    return prod(v for v in config.kwargs.values() if isinstance(v, int) and v > 1)


def _over(*_: Any) -> None:
    raise OverTime


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _inside(error: BaseException) -> bool:
    """Was it raised by this package, not by what it called for others?"""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [k for k, f in enumerate(frames) if f.filename.startswith(PACKAGE)]
    if not ours or frames[ours[-1]].filename in THROUGH:
        return False
    # A grid, a hook or a heuristic of the library's, called by a launch, is the library's.
    after = frames[ours[-1] + 1 :]
    return not any(
        "/site-packages/" not in f.filename and "/lib/python" not in f.filename for f in after
    )


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _skipped(report: Any) -> str:
    where = report.longrepr
    return str(where[2] if isinstance(where, tuple) else where)
