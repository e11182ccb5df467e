"""What went wrong, in a few lines; where the user's own code raised, with those of its lines."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from tilewright.base import knobs
from tilewright.base.errors import Invalid, MissingExtra, TilewrightError

# Exit codes of every command.
RIGHT, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
CODES = (
    "Exit code: 0 all is well; 1 the model, or what was asked about it, failed or is wrong; "
    "2 the command cannot be done as it was given; 130 stopped by Ctrl-C."
)
_OURS = Path(__file__).resolve().parents[2]
_INSTALLED = {"site-packages", "dist-packages"}


class UserError(TilewrightError):
    """The user's code raised something; its lines are those of the cause."""


def status_of(problem: BaseException) -> int:
    """2 for what the user has to give in another way, 1 for what failed."""
    return USAGE if isinstance(problem, Invalid | MissingExtra) else FAILED


def told(problem: BaseException) -> str:
    """The error in words; with a traceback only where TILEWRIGHT_LOGS=debug asks for one."""
    ours = isinstance(problem, TilewrightError)
    said = str(problem) if ours else f"{type(problem).__name__}: {problem}"
    raised = problem.__cause__ if isinstance(problem, UserError) else None if ours else problem
    lines = [] if raised is None else list(user_lines(raised))
    if not ours and not lines and not knobs.logs.get().shows("debug"):
        lines = [f"  hint: {knobs.logs.name}=debug shows where it came from"]
    return "\n".join((said, *lines))


def user_lines(problem: BaseException) -> Iterator[str]:
    """The lines of the user's files that led to an exception, the one that raised it last."""
    for frame in traceback.extract_tb(problem.__traceback__):
        if _is_users(frame.filename):
            yield f"  {_short(Path(frame.filename))}:{frame.lineno} in {frame.name}"
            if frame.line:
                yield f"    {frame.line}"


def _is_users(file: str) -> bool:
    """Is it neither ours, nor Python's, nor of an installed package?"""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    if path.is_relative_to(_OURS) or _INSTALLED & set(path.parts):
        return False
    return not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
