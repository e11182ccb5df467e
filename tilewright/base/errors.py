"""Errors for the user: what went wrong, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable


class TilewrightError(Exception):
    """Base of every error raised on purpose; `where` is the user's place, usually `file:line`."""

    def __init__(self, what: str, *, where: object = None, hint: str | None = None):
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  at {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self):
        # Exceptions with keyword-only arguments do not pickle by themselves, and errors cross
        # process boundaries when kernels are measured or compiled elsewhere.
        return _rebuild, (type(self), self.what, self.where, self.hint)


class Unsupported(TilewrightError):
    """Something valid that this compiler cannot do (yet)."""


class Refused(TilewrightError):
    """A schedule step, fusion or rewrite whose precondition does not hold. `details` shows the
    place: some lines of the program, with what is at fault marked. It is computed lazily:
    a search tries many steps and prints few of these texts, and a program may be large."""

    def __init__(
        self,
        what: str,
        *,
        where: object = None,
        hint: str | None = None,
        details: str | Callable[[], str] = "",
    ):
        super().__init__(what, where=where, hint=hint)
        self._details = details

    @property
    def details(self) -> str:
        if not isinstance(self._details, str):
            self._details = self._details()
        return self._details

    def again(self, what: str) -> Refused:
        """The same fault, of a step that this one is a part of."""
        return Refused(what, where=self.where, hint=self.hint, details=self._details)

    def __str__(self) -> str:
        shown = "\n".join(f"    {line}" for line in self.details.splitlines())
        return f"{super().__str__()}\n{shown}" if shown else super().__str__()

    def __reduce__(self):
        return _refused, (self.what, self.where, self.hint, self.details)


class Invalid(TilewrightError, ValueError):
    """Bad input from the user."""


class MissingExtra(TilewrightError, ImportError):
    """An optional dependency is needed and not installed."""

    def __init__(self, extra: str, purpose: str = "", *, where: object = None):
        self.extra = extra
        what = f"the optional dependency {extra!r} is not installed"
        super().__init__(
            f"{what}, and {purpose} needs it" if purpose else what,
            where=where,
            hint=f"pip install 'tilewright[{extra}]'",
        )


class CorruptCache(TilewrightError):
    """A cache entry whose checksum or header is wrong; callers treat it as a miss."""


def _refused(what: str, where: str | None, hint: str | None, details: str) -> Refused:
    return Refused(what, where=where, hint=hint, details=details)


def _rebuild(
    kind: type[TilewrightError], what: str, where: str | None, hint: str | None
) -> TilewrightError:
    error = kind.__new__(kind)
    TilewrightError.__init__(error, what, where=where, hint=hint)
    return error


def require(
    condition: object,
    message: str,
    *,
    hint: str | None = None,
    where: object = None,
    error: type[TilewrightError] = Invalid,
) -> None:
    """Raise `error(message)` unless the condition holds."""
    if not condition:
        raise error(message, where=where, hint=hint)
