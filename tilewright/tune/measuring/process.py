"""Candidates are measured in a process of their own, which is started again when one of them ends
it or never comes back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.base.messages import Receiver, send
from tilewright.ir.target import Target
from tilewright.tune.measuring.race import Verdict
from tilewright.tune.measuring.worker import Job

_WORKER = "from tilewright.tune.measuring.worker import main; main()"
_ROOT = Path(__file__).resolve().parents[3]  # where the package lies
# Seconds that one candidate may take to compile and to run for the first time.
PATIENCE = 60.0
# And all of them together, once all have run.
RACE = 120.0


@dataclass
class Measuring:
    """Measures traces of groups for a target. One thread at a time."""

    target: Target
    threads: int
    rounds: int = 7
    patience: float = PATIENCE
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def measure(self, group: str, traces: Sequence[str]) -> list[Verdict]:
        """Verdicts of all traces, the first of which is the reference. One that ends the process or
        hangs is left out, and the others race again."""
        verdicts: list[Verdict] = [Verdict()] * len(traces)
        left = list(range(len(traces)))
        while left:
            given = tuple(traces[k] for k in left)
            job = Job(group, given, self.target, self.threads, self.rounds)
            found = self._ask(job)
            if isinstance(found, list):
                for k, v in zip(left, found, strict=True):
                    verdicts[k] = v
                return verdicts
            at, fault = found
            verdicts[left[at]] = Verdict(fault=fault, why=f"the process {_SAID[fault]}")
            if at == 0:
                return verdicts  # nothing to compare with
            del left[at]
        return verdicts

    def _ask(self, job: Job) -> list[Verdict] | tuple[int, str]:
        """What the process found, or which candidate it did not come back from, and how."""
        p = self._started()
        assert p.stdin is not None and p.stdout is not None
        at = 0
        try:
            send(p.stdin, job)
            answers, within = Receiver(p.stdout), self.patience
            while True:
                got = answers.receive(within)
                if isinstance(got, list):
                    return got
                at = got
                within = RACE if at == len(job.traces) - 1 else self.patience
        except TimeoutError:
            self.close()
            return at, "hung"
        except (OSError, EOFError):
            self.close()
            return at, "crashed"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            # -P: files of the current directory are not what is imported.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _WORKER],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_SAID = {"crashed": "ended while it ran", "hung": "did not come back from it"}
