"""`tilewright serve`: a package behind HTTP."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.driver.cli.command import Command, positive
from tilewright.driver.looking.shown import Shown
from tilewright.serve.command import NO_BATCHES, serve_package
from tilewright.serve.server import Settings

_DEFAULT = Settings()


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", type=Path, metavar="PACKAGE", help="a folder, or NAME.twp")
    parser.add_argument("--host", default=_DEFAULT.host, help=f"(default: {_DEFAULT.host})")
    parser.add_argument("--port", type=int, default=_DEFAULT.port, help="0: any that is free")
    parser.add_argument(
        "--max-batch", type=positive, default=_DEFAULT.max_batch, metavar="ROWS", help="of one run"
    )
    parser.add_argument(
        "--max-wait-ms", type=float, default=_DEFAULT.max_wait_ms, metavar="MS",
        help="that a request waits for others to run with",
    )  # fmt: skip
    parser.add_argument(
        "--batch-dim", metavar="NAME",
        help=f"the dim that requests are put together along, or {NO_BATCHES} "
        "(default: the first of all tensors, where rows are independent)",
    )  # fmt: skip
    parser.add_argument(
        "--max-queue", type=positive, default=_DEFAULT.max_queue, metavar="N",
        help="requests that may wait; others are told to come back",
    )  # fmt: skip
    parser.add_argument(
        "--max-body", type=positive, default=_DEFAULT.max_body, metavar="BYTES", help="of a request"
    )
    parser.add_argument(
        "--workers", type=positive, default=_DEFAULT.workers, metavar="N", help="runs at once"
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="that share a run")
    parser.add_argument(
        "--timeout", type=float, default=_DEFAULT.timeout, metavar="SECONDS", help="of a request"
    )
    parser.add_argument("--public-key", metavar="PEM", help="serve only what was signed with it")


def _serve(given: argparse.Namespace, out: Shown) -> int:
    settings = Settings(
        host=given.host,
        port=given.port,
        max_batch=given.max_batch,
        max_wait_ms=given.max_wait_ms,
        max_queue=given.max_queue,
        max_body=given.max_body,
        workers=given.workers,
        timeout=given.timeout,
    )
    counted = serve_package(
        given.package,
        settings,
        batch_dim=given.batch_dim,
        threads=given.threads,
        public_key=given.public_key,
        say=out.say,
    )
    out.put(responses=dict(counted.responses), runs=counted.batches.count, rows=counted.rows)
    return 0


COMMAND = Command(
    _arguments,
    _serve,
    (
        "serve net.twp",
        "serve net.twp --port 80 --host 0.0.0.0 --max-batch 64 --threads 4",
        "serve net.twp --batch-dim none --public-key public.pem",
    ),
    "A package holds native code, which runs in the server's process: serve what you trust. "
    "SIGTERM and Ctrl-C end the server after the requests that have begun.",
)
