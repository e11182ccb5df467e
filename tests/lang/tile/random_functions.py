"""Functions that random kernels call: with loops inside, early returns, tuples, and recursion that
a constant ends. They take two integers of one dtype and give one or two."""

from __future__ import annotations

from tests.lang.tile.random_writer import Writer

_STEPS = (
    "a += b",
    "b = a - b",
    "a, b = b, a + b",
    "a, b = b, a",
    "a = a * 3 + 1",
    "b = b ^ a",
    "c = a; a = b; b = c + 1",
    "a = tl.maximum(a, b) + 2",
    "b += 2",
)


def steps(w: Writer, count: int, indent: int) -> list[str]:
    pad = "    " * indent
    lines: list[str] = []
    for _ in range(count):
        lines += [pad + part for part in w.rng.choice(_STEPS).split("; ")]
    return lines


def looping(w: Writer, name: str) -> list[str]:
    trips = w.rng.randrange(0, 5)
    header = w.rng.choice(
        [f"range({trips})", f"tl.static_range({trips})", f"range({trips}, 0, -1)"]
    )
    return [
        f"def {name}(a, b):",
        *steps(w, w.rng.randrange(0, 2), 1),
        f"    for i in {header}:",
        *steps(w, w.rng.randrange(1, 4), 2),
    ]


def straight(w: Writer, name: str) -> list[str]:
    return [f"def {name}(a, b):", *steps(w, w.rng.randrange(1, 4), 1)]


def searching(w: Writer, name: str) -> list[str]:
    return [
        f"def {name}(a, b):",
        "    k = 0",
        f"    while k < {w.rng.randrange(1, 6)}:",
        *steps(w, w.rng.randrange(1, 4), 2),
        "        k += 1",
    ]


def leaving(w: Writer, name: str, result: str) -> list[str]:
    """Some calls return early. (Of scalars: a condition is one bool.)"""
    return [
        f"def {name}(a, b):",
        *steps(w, w.rng.randrange(0, 2), 1),
        f"    if a {w.rng.choice('<>')} b:",
        *steps(w, w.rng.randrange(0, 2), 2),
        f"        return {result}",
        *steps(w, w.rng.randrange(1, 3), 1),
    ]


def descending(w: Writer, name: str, result: str) -> list[str]:
    return [
        f"def {name}(a, b, N: tl.constexpr = {w.rng.randrange(0, 5)}):",
        "    if N == 0:",
        f"        return {result}",
        *steps(w, w.rng.randrange(1, 3), 1),
        f"    return {name}(b, a, N - 1)",
    ]


def drawn(w: Writer, scalars: bool, both: bool) -> str:
    """The name of a new function of two integers, which gives both or one of them."""
    name = w.fresh("g")
    result = w.rng.choice(["a, b", "b, a", "(b, a + b)"] if both else ["a", "b", "a + b", "b - a"])
    kind = w.rng.randrange(6)
    if kind in (0, 5):
        lines = descending(w, name, result)
    else:
        if kind == 1 and scalars:
            lines = leaving(w, name, result)
        elif kind == 2:
            lines = straight(w, name)
        elif kind == 3:
            lines = searching(w, name)
        else:
            lines = looping(w, name)
        lines.append(f"    return {result}")
    w.helpers[name] = "\n".join(["@tw.jit", *lines])
    return name
