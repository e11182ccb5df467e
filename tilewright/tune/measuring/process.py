"""Candidates are measured in a process of their own, which is started again when one of them ends
it or never comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tilewright.base.messages import Receiver, send
from tilewright.ir.target import Target
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.measuring.worker import Job

_WORKER = "from tilewright.tune.measuring.worker import main; main()"
_ROOT = Path(__file__).resolve().parents[3]  # where the package lies
# Seconds that one candidate may take to compile and run for the first time, or for a turn.
PATIENCE = 60.0
# And the process to start.
START = 60.0


@dataclass
class Process:
    """A process that does one job after another. It is started when there is one, and again where
    it has ended. One thread at a time."""

    program: str  # Python that it runs
    patience: float = PATIENCE
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _answers: Receiver | None = field(default=None, init=False)
    _errors: IO[bytes] | None = field(default=None, init=False)

    def ask(self, job: object) -> list[Any] | tuple[int, Verdict]:
        """What the process found, or which part of the job it did not come back from, and how."""
        at = 0
        try:
            p = self._started()
            assert p.stdin is not None and self._answers is not None
            send(p.stdin, job)
            while True:
                got = self._answers.receive(self.patience)
                if isinstance(got, list):
                    return got
                at = got
        except TimeoutError:
            self.close()
            return at, Verdict(fault="hung", why=f"nothing came back in {self.patience:g} s")
        except (OSError, EOFError):
            return at, self._ended()
        except BaseException:  # such as Ctrl-C: what is under way is no answer to the next question
            self.close()
            raise

    def _ended(self) -> Verdict:
        """How the process ended, which it did by itself."""
        p, errors = self._process, self._errors
        if p is None or errors is None:
            return Verdict(fault="crashed", why="the process could not be started")
        try:
            code = p.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        errors.seek(0)
        lines = errors.read().decode(errors="replace").strip().splitlines()
        self.close()
        said = f": {lines[-1].strip()}" if lines else ""
        if code == -signal.SIGKILL or "MemoryError" in said:
            why = f"the process was ended while it ran, perhaps for want of memory{said}"
            return Verdict(fault="memory", why=why)
        how = f" by {signal.Signals(-code).name}" if code < 0 else ""
        return Verdict(fault="crashed", why=f"the process ended{how} while it ran{said}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
            # -P: files of the current directory are not what is imported.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", self.program],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
            assert self._process.stdout is not None
            self._answers = Receiver(self._process.stdout)
            self._answers.receive(max(START, self.patience))
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None


class Measuring(Process):
    """Measures traces of groups for a target. One thread at a time."""

    def __init__(
        self,
        target: Target,
        threads: int,
        rounds: int = 7,
        patience: float = PATIENCE,
        program: str = _WORKER,
    ) -> None:
        super().__init__(program, patience)
        self.target, self.threads, self.rounds = target, threads, rounds

    def measure(
        self,
        group: str,
        traces: Sequence[str],
        rounds: int | None = None,
        codes: Sequence[bytes] = (),
    ) -> list[Verdict]:
        """Verdicts of all traces, the first of which is the reference. One that ends the process or
        hangs is left out, and the others race again. `codes` are the code of each, where it was
        made before."""
        verdicts: list[Verdict] = [Verdict()] * len(traces)
        left = list(range(len(traces)))
        while left:
            given = tuple(traces[k] for k in left)
            made = tuple(codes[k] for k in left) if codes else ()
            job = Job(group, given, self.target, self.threads, rounds or self.rounds, made)
            found = self.ask(job)
            if isinstance(found, list):
                for k, v in zip(left, found, strict=True):
                    verdicts[k] = v
                return verdicts
            at, verdict = found
            verdicts[left[at]] = verdict
            if at == 0:
                return verdicts  # nothing to compare with
            del left[at]
        return verdicts
