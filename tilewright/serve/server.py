"""`tilewright serve`: a package behind HTTP, with the standard library's event loop.

    POST /v1/run    inputs in, outputs out: JSON, or the bytes of a safetensors file
    GET /health     whether requests are taken
    GET /metrics    counters for Prometheus
    GET /           a page for people

The event loop parses requests and writes responses; worker threads run the package. A connection
has one request under way at a time; requests sent ahead wait in its parser. A client that ends its
side of the connection has left: what it waited for is not computed.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import cast

import numpy as np

from tilewright.base.errors import Invalid

from .batching import Batcher, Full, Job, Package, Rows
from .http import JSON, Fault, Parser, Request, Response
from .metrics import Metrics
from .page import page
from .tensors import RAW, from_json, from_raw, names_of, to_json, to_raw

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SWEEP = 0.25  # seconds between looks at what has waited too long
_AHEAD = 64 << 10  # bytes that a client may send ahead of an answer
_LINGER = 2.0  # seconds in which the rest of a refused request is read and thrown away


@dataclass(frozen=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 32  # rows
    max_wait_ms: float = 1.0
    max_queue: int = 1024  # requests
    max_body: int = 64 << 20  # bytes
    workers: int = 2
    timeout: float = 30.0  # seconds for a request to arrive, and as long for its answer
    idle: float = 75.0  # seconds that a connection may be without a request

    def __post_init__(self) -> None:
        for name, least in (
            ("port", 0),
            ("max_batch", 1),
            ("max_wait_ms", 0),
            ("max_queue", 1),
            ("max_body", 1),
            ("workers", 1),
        ):
            if getattr(self, name) < least:
                raise Invalid(f"{name} is {getattr(self, name)}, and {least} is the least")
        if self.port > 65535:
            raise Invalid(f"port is {self.port}, and 65535 is the last one")
        if self.timeout <= 0 or self.idle <= 0:
            raise Invalid("a time to wait has to be more than 0 seconds")


@dataclass(eq=False)
class Server:
    """`start`, then `stop`, in one event loop."""

    package: Package
    settings: Settings
    rows: Rows | None = None
    metrics: Metrics = field(default_factory=Metrics)
    stopping: bool = False
    date: str = ""

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        s = self.settings
        self.batcher = Batcher(
            self.package,
            self.rows,
            s.max_batch,
            s.max_wait_ms / 1000,
            s.max_queue,
            s.workers,
            self.metrics,
        )
        self.connections: set[Connection] = set()
        self.inputs, self.outputs = names_of(self.package.inputs), names_of(self.package.outputs)
        try:
            self._listening = await loop.create_server(
                lambda: Connection(self), s.host, s.port, backlog=1024
            )
        except OSError as problem:
            raise Invalid(
                f"cannot listen at {s.host}:{s.port}: {problem.strerror or problem}",
                hint="choose another --port, or stop what listens there",
            ) from None
        self.date = formatdate(usegmt=True)
        self._sweeping = loop.create_task(self._sweep())

    @property
    def port(self) -> int:
        return self._listening.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Takes no more connections, and answers every request that has begun to arrive, for as
        long as one may take."""
        self.stopping = True
        self._listening.close()
        for connection in list(self.connections):
            connection.stop()
        last = time.monotonic() + 2 * self.settings.timeout
        while self.connections and time.monotonic() < last:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        while self.batcher.running:
            await asyncio.sleep(0.01)
        self._sweeping.cancel()
        self.batcher.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            self.date = formatdate(usegmt=True)
            now = time.monotonic()
            for connection in list(self.connections):
                if now > connection.deadline:
                    connection.too_late()

    # ---- what is answered

    def answer(self, request: Request, connection: Connection) -> Response | Job:
        """A response, or the job whose answer will be one."""
        if request.path == "/v1/run":
            if request.method != "POST":
                return _other_method(request, "POST")
            return self._run(request, connection)
        respond = {"/": self._page, "/health": self._health, "/metrics": self._metrics}
        if request.path not in respond:
            return refusal(404, f"there is nothing at {request.path}: see /")
        if request.method not in ("GET", "HEAD"):
            return _other_method(request, "GET, HEAD")
        return respond[request.path](request)

    def _run(self, request: Request, connection: Connection) -> Response | Job:
        kind = request.fields.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind not in (JSON, RAW):
            return refusal(415, f"the body is {kind}, and {JSON} or {RAW} is needed")
        accepted = request.fields.get("accept", "")
        raw = RAW in accepted or (kind == RAW and JSON not in accepted)
        try:
            if kind == RAW:
                inputs, base64 = from_raw(request.body, self.inputs), False
            else:
                inputs, base64 = from_json(request.body, self.inputs)

            def encode(outputs: Mapping[str, np.ndarray]) -> bytes:
                if raw:
                    return to_raw(outputs, self.outputs)
                return to_json(outputs, self.outputs, base64)

            def answered(found: bytes | Exception) -> None:
                connection.respond(_response(found, RAW if raw else JSON))

            job = Job(inputs, encode, answered)
            self.batcher.submit(job)
        except Full:
            why = f"{self.settings.max_queue} requests wait already: try again"
            return refusal(503, why, ("Retry-After", "1"))
        except ValueError as problem:
            return refusal(400, str(problem))
        return job

    def _health(self, request: Request) -> Response:
        status = "stopping" if self.stopping else "ok"
        body = json.dumps({"status": status, "model": self.package.name}).encode()
        return Response(503 if self.stopping else 200, body)

    def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(self.batcher.waiting, self.batcher.running)
        return Response(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _page(self, request: Request) -> Response:
        host = request.fields.get("host", "localhost")
        text = page(self.package, self.rows, self.metrics, self.batcher.waiting, host)
        safe = ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        return Response(200, text.encode(), "text/html; charset=utf-8", (safe,))


def _response(found: bytes | Exception, kind: str) -> Response:
    if isinstance(found, bytes):
        return Response(200, found, kind)
    if isinstance(found, ValueError):  # what was asked for cannot be computed
        return refusal(400, str(found))
    return refusal(500, f"the run failed: {type(found).__name__}: {found}")


def _other_method(request: Request, allowed: str) -> Response:
    why = f"{request.path} takes {allowed}, not {request.method}"
    return refusal(405, why, ("Allow", allowed))


def refusal(status: int, why: str, *fields: tuple[str, str]) -> Response:
    return Response(status, json.dumps({"error": why}).encode(), JSON, fields)


class Connection(asyncio.Protocol):
    """One client: requests one after the other, in order."""

    transport: asyncio.Transport

    def __init__(self, server: Server):
        self.server = server
        self.parser = Parser(server.settings.max_body)
        self.request: Request | None = None  # the one under way
        self.job: Job | None = None
        self.began = 0.0
        self.closing = False
        self.blocked = False  # the client does not read what was written
        self.arriving = False
        self.deadline = time.monotonic() + server.settings.timeout

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.connections.add(self)
        self.server.metrics.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.connections.discard(self)
        self.server.metrics.connections -= 1
        if self.job is not None:
            self.server.batcher.drop(self.job)
            self.job = None

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self.parser.feed(data)
        if self.request is not None or self.blocked:
            # Sent ahead of an answer: some is kept, then the client has to wait.
            if self.parser.waiting > _AHEAD:
                self.transport.pause_reading()
            return
        self._next()

    def pause_writing(self) -> None:
        self.blocked = True

    def resume_writing(self) -> None:
        self.blocked = False
        if self.request is None and not self.closing:
            self._next()

    def _next(self) -> None:
        """Handles requests that have arrived whole, up to one that has to wait."""
        while self.request is None and not (self.blocked or self.closing):
            try:
                request = self.parser.take()
            except Fault as fault:
                self._refuse(fault.status, str(fault))
                return
            if request is None:
                self._wait()
                return
            self.arriving = False
            self._handle(request)

    def _wait(self) -> None:
        """For the rest of a request, or for one."""
        settings = self.server.settings
        if self.parser.within:
            if not self.arriving:
                self.arriving = True
                self.deadline = time.monotonic() + settings.timeout
            if self.parser.wants_continue:
                self.parser.wants_continue = False
                self.transport.write(_CONTINUE)
        else:
            self.deadline = time.monotonic() + settings.idle
        if self.server.stopping and not self.parser.within:
            self._close()
        else:
            self.transport.resume_reading()

    def _handle(self, request: Request) -> None:
        self.request, self.began = request, time.monotonic()
        self.deadline = self.began + self.server.settings.timeout
        try:
            found = self.server.answer(request, self)
        except Exception as problem:  # a mistake of this server's ends no connection without words
            found = _response(problem, JSON)
        if isinstance(found, Response):
            self.respond(found, again=False)
        else:
            self.job = found

    def respond(self, response: Response, again: bool = True) -> None:
        """Answers the request under way, and goes on to the next one where `again` says so."""
        request = self.request
        if request is None:
            return
        if self.job is not None:
            self.server.metrics.latency.add(time.monotonic() - self.began)
        self.request, self.job = None, None
        keep = request.keep_alive and not self.server.stopping
        self._write(response, keep, request.method == "HEAD")
        if again and keep:
            self._next()

    def _write(self, response: Response, keep: bool, head_only: bool = False) -> None:
        self.server.metrics.responses[response.status] += 1
        self.deadline = time.monotonic() + self.server.settings.timeout
        self.transport.write(response.encoded(self.server.date, keep, head_only))
        if not keep:
            self._close()

    def _close(self) -> None:
        self.closing = True
        self.transport.close()

    def _refuse(self, status: int, why: str) -> None:
        """For what leaves the connection useless. To close it while the client sends would reset
        it, and the client might not see why: what still comes is read for a while."""
        response = refusal(status, why)
        self.server.metrics.responses[status] += 1
        self.transport.write(response.encoded(self.server.date, keep_alive=False))
        self.transport.write_eof()
        self.closing = True
        self.deadline = time.monotonic() + _LINGER

    def stop(self) -> None:
        """The server ends: without a request under way, or arriving, there is nothing to do."""
        if self.request is None and not self.parser.within:
            self._close()

    def too_late(self) -> None:
        if self.closing or self.blocked:
            self.transport.abort()  # the client reads nothing, or does not end
        elif self.job is not None:
            self.server.batcher.drop(self.job)
            seconds = self.server.settings.timeout
            self.respond(refusal(504, f"there was no result within {seconds:g} seconds"))
        elif self.parser.within:
            self._refuse(408, "the rest of the request did not arrive in time")
        else:
            self._close()


async def serve(server: Server, ready: Callable[[Server], None]) -> None:
    """Serves until SIGTERM or SIGINT; a second one ends it at once."""
    await server.start()
    ready(server)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    await server.stop()
