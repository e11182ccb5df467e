"""Ways to search a space, by name; each is a file of its own behind one interface (`Search`)."""

from __future__ import annotations

from importlib import import_module

from tilewright.base.errors import Invalid
from tilewright.tune.search.state import Search

# Name of the way: its module and class. Loaded when asked for: one of them needs an extra.
WAYS = {
    "evolution": ("evolution", "Evolution"),
    "random": ("random", "Random"),
    "exhaustive": ("exhaustive", "Exhaustive"),
    "annealing": ("annealing", "Annealing"),
    "descent": ("descent", "Descent"),
    "bayesian": ("bayesian", "Bayesian"),
}


def search_named(name: str) -> Search:
    if name not in WAYS:
        raise Invalid(f"there is no search called {name!r}", hint=f"it is one of {', '.join(WAYS)}")
    module, cls = WAYS[name]
    return getattr(import_module(f"tilewright.tune.search.{module}"), cls)()
