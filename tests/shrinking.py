"""Making a failing case small, each attempt in a child process: it may abort, hang or fill memory.

Children are forked from a process that has loaded the generator and run nothing yet, so that an
attempt costs no imports and starts from the same state as every other. Where that changes what is
found (see `minimal`), attempts follow each other in one process.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any

from tests.generators import Failure, Generator, judged

# What an attempt of a case that hangs may take: less than a draw, more than any that does not.
ATTEMPT = 20.0


def error(problem: BaseException, where: str = "") -> Failure:
    """An exception as a failure; its kind is its type, its words and where it was raised."""
    words = str(problem).strip().splitlines()[:1] or [""]
    head = re.sub(r"0x[0-9a-f]+|\d+", "#", words[0])[:70]
    last = traceback.extract_tb(problem.__traceback__)[-1:]
    place = f" in {os.path.basename(last[0].filename)}" if last else ""
    text = "".join(traceback.format_exception(problem)[-12:])
    return Failure(f"{where}{type(problem).__name__}{place}: {head}", text, "error")


def ended(status: int, complaint: str) -> Failure:
    """How a process ended that gave no answer."""
    how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    words = [line for line in complaint.splitlines() if "LLVM ERROR" in line or "Fatal" in line]
    head = re.sub(r"0x[0-9a-f]+|\d+", "#", words[0])[:70] if words else ""
    return Failure(f"the process ended: {how} {head}".strip(), complaint[-4000:], "abort")


def attempt(generator: Generator, case: Any, seconds: float, most_bytes: int) -> Failure | None:
    """What is wrong with a case, found out in a child process."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as complaint:
        child = os.fork()
        if child == 0:
            _answer(generator, case, write, complaint.fileno())
        os.close(write)
        try:
            found, answer = _outcome(child, read, seconds, most_bytes)
        finally:
            os.close(read)
        if found is not None:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if found is not None:
            return found
        if answer.endswith(b"\n"):
            answer_data = json.loads(answer)
            return None if answer_data is None else Failure(*answer_data)
        complaint.seek(0)
        text = complaint.read().decode(errors="replace")
        return ended(os.waitstatus_to_exitcode(status), text)


def _answer(generator: Generator, case: Any, write: int, complaint: int) -> None:
    """The child: judge, answer, end without running what the parent had planned for its end."""
    os.dup2(complaint, 1)
    os.dup2(complaint, 2)
    try:
        try:
            found, _ = judged(generator, case)
        except BaseException as problem:  # whatever it is, it is an answer
            found = error(problem)
        answer_data = None if found is None else (found.kind, found.text, found.what)
        os.write(write, json.dumps(answer_data).encode() + b"\n")
    finally:
        os._exit(0)


class Watch:
    """Whether a process takes too long: by the processor's time, for others may be busy too; or
    by four times that on the clock, for it may be waiting."""

    def __init__(self, process: int, seconds: float) -> None:
        self.process, self.seconds = process, seconds
        self.began, self.used = time.monotonic(), processor_seconds(process)

    def late(self) -> Failure | None:
        waited = time.monotonic() - self.began
        used = processor_seconds(self.process) - self.used
        if max(used, waited / 4) <= self.seconds:
            return None
        text = f"no answer after {waited:.0f} s, {used:.0f} s of the processor's"
        return Failure("hangs", text, "hang")


def _outcome(child: int, read: int, seconds: float, most: int) -> tuple[Failure | None, bytes]:
    watch = Watch(child, seconds)
    answer = b""
    while not answer.endswith(b"\n"):
        ready, _, _ = select.select([read], [], [], 0.25)
        if ready:
            part = os.read(read, 1 << 16)
            if not part:
                return None, answer
            answer += part
        elif late := watch.late():
            return late, b""
        elif resident(child) > most:
            return too_large(most), b""
    return None, answer


def too_large(most: int) -> Failure:
    return Failure("takes too much memory", f"more than {most >> 20} MiB", "memory")


def resident(process: int) -> int:
    """Bytes of memory that a process holds; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def processor_seconds(process: int) -> float:
    """The processor's time that a process has taken; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def shrunk(
    generator: Generator,
    case: Any,
    failure: Failure,
    fails: Callable[[Any], Failure | None],
    seconds: float,
    tries: int = 400,
) -> tuple[Any, Failure]:
    """A smaller case that fails in the same way, and how: the first that does, again and again."""
    end = time.monotonic() + seconds
    going = True
    while going:
        going = False
        for smaller in generator.smaller(case):
            tries -= 1
            if tries < 0 or time.monotonic() > end:
                return case, failure
            found = fails(smaller)
            if found is not None and found.kind == failure.kind:
                case, failure, going = smaller, found, True
                break
    return case, failure


def minimal(
    generator: Generator, case: Any, seconds: float, most_bytes: int
) -> tuple[Any, Failure | None]:
    """The case made small, and what is wrong with it; None when alone it is right.

    A forked process is not quite what a new one is: a library that had started threads or looked
    for a GPU before may refuse its work there. So what a child does not find is looked for here,
    where nothing else has run, and made small here.
    """

    def fails(candidate: Any) -> Failure | None:
        return attempt(generator, candidate, min(ATTEMPT, generator.seconds), most_bytes)

    def fails_here(candidate: Any) -> Failure | None:
        try:
            return judged(generator, candidate)[0]
        except Exception as problem:  # reported as what is wrong with the case
            return error(problem)

    generator.prepare()
    found = attempt(generator, case, generator.seconds, most_bytes)
    if found is None or found.skipped:
        fails, found = fails_here, fails_here(case)
    if found is None or found.skipped:
        return case, None
    return shrunk(generator, case, found, fails, seconds)
