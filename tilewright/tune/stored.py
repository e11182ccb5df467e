"""Schedules that were chosen by measuring, on disk: by group, target and machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from tilewright.base.cache import Cache
from tilewright.kernel.group import Group
from tilewright.kernel.nest import start
from tilewright.kernel.step import apply, parse_trace
from tilewright.tune.choose import Chosen, Considered

KIND = "schedule"


def load_choice(cache: Cache, key: str, group: Group) -> Chosen | None:
    found = cache.get(KIND, key)
    if found is None:
        return None
    stored = json.loads(found)
    trace = parse_trace(stored["trace"])
    considered = tuple(Considered(**x) for x in stored["considered"])
    return Chosen(trace, apply(start(group), trace), considered)


def store_choice(cache: Cache, key: str, trace: str, considered: Sequence[Considered]) -> None:
    stored = {"trace": trace, "considered": [asdict(x) for x in considered]}
    cache.put(KIND, key, json.dumps(stored).encode())
