"""What runtimes say about packages and calls that they refuse: one table for C and for Python.

The number of a sentence is its error code, from 1 on. `%s` are words, `%d` whole numbers. The
header of packages is made with this table; a runtime in another language has the same.
"""

from __future__ import annotations

SENTENCES = {
    "FILE": "%s cannot be read: %s",
    "PACKAGE": "%s is no package: %s",
    "FORMAT": "%s is a package of format %d, and this runtime reads format %d",
    "OUTSIDE": "%s: its manifest names the file %s, which is outside of the package",
    "SIZE": "%s: %s has %d bytes, and the manifest says %d: the file is truncated or another one",
    "ALTERED": "%s: %s is not the file that was packaged: its checksum differs",
    "ARCHITECTURE": "%s has code for %s, and this machine is %s",
    "FEATURE": "%s: code for %s needs %s, which this processor lacks or the system does not permit",
    "LOAD": "%s: %s cannot be loaded: %s",
    "MEMORY": "%d bytes of memory are not available",
    "INPUTS": "the package has %d inputs, and %d were given",
    "OUTPUTS": "the package has %d outputs, and memory for %d was given",
    "DTYPE": "%s is of dtype %s, and %s was given",
    "SHAPE": "%s has the shape %s, and %s was given",
    "BOUNDS": "the dim %s is %d, and the package is for %s",
    "CHECK": "%s",
    "ARGUMENT": "%s",
}


def header(template: str) -> str:
    """The header of packages: its template with error codes and sentences."""
    names = [f"  TW_ERROR_{name} = {k}," for k, name in enumerate(SENTENCES, 1)]
    names[-1] = names[-1].rstrip(",")
    texts = [f'  "{text.replace("%d", "%lld")}",' for text in SENTENCES.values()]
    filled = template.replace("/* @codes@ */", "\n".join(names))
    return filled.replace("/* @sentences@ */", "\n".join(texts))
