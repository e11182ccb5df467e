"""What `tilewright serve` does: loads a package, decides how requests are put together, serves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from tilewright.base.errors import Invalid
from tilewright_runtime import PackageError, load

from .batching import Package, Rows, rows_are_apart, rows_of, usual_rows
from .metrics import Metrics
from .server import Server, Settings, serve

NO_BATCHES = "none"


def chosen_rows(package: Package, wanted: str | None, max_batch: int) -> tuple[Rows | None, str]:
    """The dim that requests are put together along, and a sentence about it. `wanted` names one,
    or is "none"."""
    if wanted == NO_BATCHES or max_batch == 1:
        return None, "every request runs by itself"
    rows = usual_rows(package) if wanted is None else rows_of(package, wanted)
    if rows is None:
        why = "no dim is the first of every input and output"
        return None, f"every request runs by itself: {why}"
    apart = rows_are_apart(package, rows)
    if apart is False:
        why = f"requests of random numbers, put together along {rows.symbol}, change each other"
        if wanted is not None:
            raise Invalid(why, hint="serve without --batch-dim")
        return None, f"every request runs by itself: {why}"
    if apart is None and wanted is None:
        why = f"whether rows of {rows.symbol} are independent could not be tried"
        return None, f"every request runs by itself: {why} (--batch-dim {rows.symbol} says so)"
    return rows, f"up to {max_batch} rows run together, along {rows.symbol}"


def serve_package(
    path: str | Path,
    settings: Settings,
    *,
    batch_dim: str | None = None,
    threads: int | None = None,
    public_key: str | None = None,
    say: Callable[[str], None] = print,
) -> Metrics:
    """Serves a package until the process is told to end; gives what was counted."""
    try:
        package = load(path, threads=threads, public_key=public_key, copy_weights=True)
        with package:
            rows, about = chosen_rows(package, batch_dim, settings.max_batch)
            server = Server(package, settings, rows)

            def ready(made: Server) -> None:
                say(f"{package!r}")
                say(f"{about}; {settings.workers} workers, {package.threads} threads")
                say(f"http://{settings.host}:{made.port}/  (process {os.getpid()})")

            asyncio.run(serve(server, ready))
            say("stopped: everything that had begun was answered")
            return server.metrics
    except PackageError as problem:
        raise Invalid(str(problem)) from None
