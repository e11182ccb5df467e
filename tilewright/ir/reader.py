"""Reading text: one tokenizer for all levels; errors name line, column and what was expected.

A `#` starts a comment, except before a parenthesis: `#(i0+1)` is an index used as a value.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, NoReturn, TypeVar

from tilewright.base.errors import Invalid

T = TypeVar("T")

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+)
      | (?P<newline>\n)
      | (?P<comment>\#(?!\()[^\n]*)
      | (?P<number>(?:\d+\.(?!\.)\d*|\d+(?=e[-+\d]))(?:e[-+]?\d+)?|\d+)
      | (?P<name>[A-Za-z_?](?:[\w?@]|\.(?=[\w?]))*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<sign>\.\.|//|<=|>=|==|!=|->|\+=|\#\(|\$\{|[^\s\w])""",
    re.VERBOSE,
)
_PLAIN_NAME = re.compile(r"[A-Za-z_?](?:[\w?@]|\.(?=[\w?]))*\Z")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class Token(NamedTuple):
    kind: str  # name, number, string, sign, comment, end
    text: str
    start: int


def is_plain_name(text: str) -> bool:
    """Does the text read as one name, without quotes?"""
    return _PLAIN_NAME.match(text) is not None


def quoted(text: str) -> str:
    """The text as a string literal that `Reader.string` reads back."""
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter, char in _ESCAPES.items():
        out = out.replace(char, "\\" + letter)
    return f'"{out}"'


def name_text(text: str) -> str:
    return text if is_plain_name(text) else quoted(text)


class Reader:
    """A cursor over tokens. Grammars of the levels are functions or subclasses that call it."""

    def __init__(self, text: str, what: str = "text") -> None:
        self.text, self.what = text, what
        self.comments: dict[int, str] = {}  # by line number
        self._lines = [0, *(m.end() for m in re.finditer("\n", text))]
        self.tokens = self._tokenize()
        self.at = 0

    def _tokenize(self) -> list[Token]:
        out: list[Token] = []
        pos, end = 0, len(self.text)
        while pos < end:
            m = _TOKEN.match(self.text, pos)
            kind = None if m is None else m.lastgroup
            if m is None or kind is None:
                self.fail("a token", pos)
            if kind == "comment":
                self.comments[self.line(pos)] = m.group()[1:].strip()
            elif kind not in ("space", "newline"):
                out.append(Token(kind, m.group(), pos))
            pos = m.end()
        out.append(Token("end", "", end))
        return out

    # ---- where we are

    def line(self, pos: int) -> int:
        """The line number, from 1, of a position in the text."""
        return bisect_right(self._lines, pos)

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def fail(self, expected: str, pos: int | None = None) -> NoReturn:
        """Refuse the text at the current token (or `pos`)."""
        if pos is None:
            pos = self.token.start
            found = repr(self.token.text) if self.token.text else "the end"
            expected = f"expected {expected}, found {found}"
        else:
            expected = f"expected {expected}"
        self._raise(expected, pos)

    def problem(self, message: str, token: Token | None = None) -> NoReturn:
        """Refuse what was read for a reason other than its form."""
        self._raise(message, (token or self.token).start)

    def _raise(self, message: str, pos: int) -> NoReturn:
        number = self.line(pos)
        start = self._lines[number - 1]
        end = self.text.find("\n", start)
        shown = self.text[start : len(self.text) if end < 0 else end]
        column = pos - start + 1
        raise Invalid(
            f"{self.what}, line {number}, column {column}: {message}\n"
            f"    {shown}\n    {' ' * (column - 1)}^"
        )

    # ---- taking tokens

    def sees(self, *texts: str) -> bool:
        t = self.tokens[self.at]
        return t.text in texts and t.kind != "string"

    def sees_kind(self, kind: str) -> bool:
        return self.tokens[self.at].kind == kind

    def next(self) -> Token:
        t = self.tokens[self.at]
        if t.kind != "end":
            self.at += 1
        return t

    def take(self, text: str) -> bool:
        """Step over `text` if it is next."""
        t = self.tokens[self.at]
        if t.text != text or t.kind == "string":
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> Token:
        if not self.sees(text):
            self.fail(repr(text))
        return self.next()

    def name(self, what: str = "a name") -> str:
        """A bare or quoted name."""
        if self.sees_kind("string"):
            return self.string()
        if not self.sees_kind("name"):
            self.fail(what)
        return self.next().text

    def integer(self, what: str = "a whole number") -> int:
        sign = -1 if self.take("-") else 1
        if not self.sees_kind("number") or not self.token.text.isdigit():
            self.fail(what)
        return sign * int(self.next().text)

    def string(self) -> str:
        if not self.sees_kind("string"):
            self.fail("a quoted string")
        body = self.next().text[1:-1]
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), body)

    def end(self) -> None:
        if not self.sees_kind("end"):
            self.fail("the end")

    # ---- shapes of grammar

    def several(self, one: Callable[[], T], close: str, separator: str = ",") -> list[T]:
        """Items up to `close`, which is taken; a trailing separator is allowed."""
        out: list[T] = []
        while not self.take(close):
            out.append(one())
            if not self.take(separator):
                if not self.sees(close):
                    self.fail(f"{separator!r} or {close!r}")
                self.next()
                break
        return out

    def skip_group(self) -> None:
        """Step over a balanced group; the cursor stands on its opening bracket."""
        depth = 0
        start = self.token
        while True:
            t = self.next()
            if t.kind == "end":
                self.problem("this bracket is never closed", start)
            if t.kind == "sign":
                depth += t.text in ("(", "[", "{", "#(", "${")
                depth -= t.text in (")", "]", "}")
                if depth == 0:
                    return

    def has_comma_inside(self) -> bool:
        """Is the bracketed group at the cursor empty, or has it a comma at its own level?"""
        depth, k = 0, self.at
        while k < len(self.tokens) - 1:
            t = self.tokens[k]
            if t.kind == "sign":
                depth += t.text in ("(", "[", "{", "#(", "${")
                depth -= t.text in (")", "]", "}")
                if depth == 0:
                    return k == self.at + 1
                if depth == 1 and t.text == ",":
                    return True
            k += 1
        return False
