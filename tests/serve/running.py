"""A server in a thread of this process, and a package that numpy computes."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.serve.batching import Rows
from tilewright.serve.server import Server, Settings


@dataclass(frozen=True)
class Described:
    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass
class Twice:
    """y = 2 x of float32[n, m], n and m up to 64; `gate` holds up runs, and a row that begins with
    13 is refused. `mixes` makes rows depend on each other."""

    mixes: bool = False
    name: str = "twice"
    inputs: Sequence[Described] = (Described("x", "f32", ("n", "m")),)
    outputs: Sequence[Described] = (Described("y", "f32", ("n", "m")),)
    dims: Mapping[str, tuple[int, int]] = field(
        default_factory=lambda: {"n": (1, 64), "m": (1, 64)}
    )
    gate: threading.Event = field(default_factory=threading.Event)
    ran: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def dims_of(self, inputs: Mapping[str, Any]) -> Mapping[str, int]:
        if inputs.keys() != {"x"}:
            raise ValueError("the inputs are x")
        if inputs["x"].ndim != 2 or not all(1 <= n <= 64 for n in inputs["x"].shape):
            raise ValueError("x does not have two dims between 1 and 64")
        return dict(zip("nm", inputs["x"].shape, strict=True))

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        self.dims_of(inputs)
        x = inputs["x"]
        self.gate.wait()
        self.ran.append(x.shape)
        if (x[:, 0] == 13).any():
            raise ValueError("13 is refused")
        return [2 * x + (x.sum() if self.mixes else 0)]


@contextmanager
def serving(package: Any, rows: Rows | None = None, **settings: Any) -> Iterator[Server]:
    server = Server(package, Settings(port=0, **settings), rows)
    started, loop = threading.Event(), asyncio.new_event_loop()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.start())
        started.set()
        loop.run_forever()

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        stopped = asyncio.run_coroutine_threadsafe(server.stop(), loop)
        stopped.result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def connected(server: Server) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)


def ask(
    client: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Any = None,
    **fields: str,
) -> tuple[int, Any, Mapping[str, str]]:
    """Status, body (what JSON says, where it is JSON) and fields."""
    kind = {} if body is None else {"Content-Type": "application/json"}
    named = {k.replace("_", "-"): v for k, v in fields.items()}
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    client.request(method, path, data, {**kind, **named})
    response = client.getresponse()
    raw = response.read()
    is_json = response.headers.get_content_type() == "application/json"
    return response.status, json.loads(raw) if is_json else raw, dict(response.headers)
