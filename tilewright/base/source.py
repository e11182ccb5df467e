"""Python's parser, for one thread at a time.

Until Python 3.12 the parser counts how deep it is in a number that all threads share: two threads
that parse at the same time get "SystemError: AST constructor recursion depth mismatch".
"""

from __future__ import annotations

import ast
from threading import Lock

_parsing = Lock()


def parse_module(source: str) -> ast.Module:
    with _parsing:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    with _parsing:
        return ast.parse(source, mode="eval").body
