"""No garbage collection while compiling: nearly all objects made then stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Objects that may count as old before a collection has visited them: some of them are garbage.
_MOST = 500_000


@contextmanager
def garbage_waits() -> Iterator[None]:
    """No collection inside: one over all of torch's objects takes longer than many a pass. What was
    made inside counts as old afterwards: otherwise the next few collections would visit all of it,
    and all of torch's objects, as soon as something else is allocated."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            _unvisited.grow_old()
            gc.enable()


class _Unvisited:
    """How many objects have become old without a collection since the last full one, and whether
    the user's frozen objects were seen since then."""

    def __init__(self) -> None:
        self.count = self.collections = 0
        self.frozen = False

    def grow_old(self) -> None:
        """Freezing takes objects from all generations, and the opposite gives them to the oldest;
        what the user froze stays so. Where there are too many, collections go on as usual. To ask
        for frozen objects counts them one by one, which is not done after each of many compiles."""
        done = gc.get_stats()[-1]["collections"]
        if done != self.collections:
            self.count, self.collections, self.frozen = 0, done, False
        self.count += gc.get_count()[0]
        if self.count > _MOST or self.frozen:
            return
        self.frozen = bool(gc.get_freeze_count())
        if not self.frozen:
            gc.freeze()
            gc.unfreeze()


_unvisited = _Unvisited()
