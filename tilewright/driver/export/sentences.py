"""What runtimes say about packages and calls that they refuse: one table for C and for Python.

The table is the Python runtime's, which depends on nothing here. The number of a sentence is its
error code, from 1 on; `%s` are words, `%d` whole numbers. The header of packages is made with it.
"""

from __future__ import annotations

from tilewright_runtime.sentences import SENTENCES


def header(template: str) -> str:
    """The header of packages: its template with error codes and sentences."""
    names = [f"  TW_ERROR_{name} = {k}," for k, name in enumerate(SENTENCES, 1)]
    names[-1] = names[-1].rstrip(",")
    texts = [f'  "{text.replace("%d", "%lld")}",' for text in SENTENCES.values()]
    filled = template.replace("/* @codes@ */", "\n".join(names))
    return filled.replace("/* @sentences@ */", "\n".join(texts))
