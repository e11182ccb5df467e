"""Models that guess which schedule is faster: analytic, or learned from measurements."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.ir.target import Target
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.search.state import Model

_LEARNED = "tilewright.tune.models.learned"
_KEEPING = "tilewright.tune.models.keeping"
NAMES = ("auto", "learned", "analytic")
PRETRAINED = Path(__file__).parent / "pretrained"


def model_for(name: str, target: Target, tell: Callable[[str], object]) -> Model:
    """By name; `auto` is the one that learns, or where its extra is missing, which is told, the
    analytic one."""
    if name not in NAMES:
        raise Invalid(f"there is no model called {name!r}", hint=f"it is one of {', '.join(NAMES)}")
    learned = import_module(_LEARNED)
    if name == "auto" and not learned.available():
        tell("the model that learns needs the extra `tune`: the analytic one stands in")
        name = "analytic"
    if name == "auto" and (why := learned.broken()):
        tell(f"{why}; the analytic model stands in")
        name = "analytic"
    if name == "analytic":
        return Analytic()
    kept = import_module(_KEEPING).Kept(kept_file(target), learned.columns(), tell)
    return learned.Learned(pretrained(target), kept, tell)


def family(target: Target) -> str:
    """Targets whose schedules are fast for the same reasons: by architecture and width of vectors.
    Caches, rates and cores are features."""
    return f"{target.arch}-{target.vector_bits}"


def pretrained(target: Target) -> Path | None:
    """The model that ships for a target's family, if one was trained."""
    found = PRETRAINED / f"{family(target)}.txt"
    return found if found.is_file() else None


def kept_file(target: Target) -> Path:
    """Where what is learned of a family on this machine is kept."""
    return knobs.cache_dir.get() / "learned" / f"{family(target)}.npz"
