"""`tilewright cache`: what the disk cache holds."""

from __future__ import annotations

import argparse

from tilewright.base.cache import Cache
from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tables import bytes_text


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=("show", "clear"), default="show",
        help="the entries by kind; or remove them all (records and measured numbers stay)",
    )  # fmt: skip


def _cache(given: argparse.Namespace, out: Shown) -> int:
    cache = Cache.from_knobs()
    rows = [{"kind": k, "entries": n, "bytes": size} for k, (n, size) in cache.kinds().items()]
    total = sum(r["bytes"] for r in rows)
    out.put(folder=cache.directory, enabled=cache.enabled, limit_bytes=cache.limit_bytes)
    if given.what == "clear":
        cache.clear()
        out.put(removed_bytes=total)
        out.say(f"{bytes_text(total)} removed from {cache.directory}")
        return 0
    size = {"bytes": lambda r: bytes_text(r["bytes"])}
    out.table("kinds", rows, {"kind": "kind", "entries": "entries", **size})
    most, off = bytes_text(cache.limit_bytes), "" if cache.enabled else "; it is turned off"
    out.say(f"{bytes_text(total)} of at most {most} in {cache.directory}{off}")
    return 0


COMMAND = Command(_arguments, _cache, ("cache", "cache clear", "cache --json"))
