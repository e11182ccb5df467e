"""Many clients at once: throughput, times and failures of `tilewright serve`, and with `--peer` of
FastAPI with ONNX Runtime on the same cores (tests/serve/peer.py says what to install).

    python -m tests.serve.load --clients 200 --seconds 60 --peer [--model mlp|mobilenetv2] [--raw]

Each client has one connection and sends its next request when it has the answer. The servers take
turns, `--rounds` times each. Every answer is compared with the right one. Models are made with
torch, or given: `--package net.twp --onnx net.onnx`, of one float32 input whose first dim is rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.serve.tensors import RAW, from_raw, to_raw
from tilewright_runtime import load

INPUTS = 8  # different requests


@dataclass
class Measured:
    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    failed: int = 0
    why: dict[str, int] = field(default_factory=dict)

    def fail(self, why: str) -> None:
        self.failed += 1
        self.why[why] = self.why.get(why, 0) + 1

    def add(self, other: Measured) -> None:
        self.seconds += other.seconds
        self.times += other.times
        self.failed += other.failed
        for why, count in other.why.items():
            self.why[why] = self.why.get(why, 0) + count

    def row(self) -> dict[str, Any]:
        times = np.sort(np.array(self.times or [np.nan])) * 1000
        return {
            "requests": len(self.times),
            "per second": round(len(self.times) / max(self.seconds, 1e-9), 1),
            "p50 ms": round(float(np.quantile(times, 0.5)), 2),
            "p99 ms": round(float(np.quantile(times, 0.99)), 2),
            "failed": self.failed,
            **({"why": self.why} if self.why else {}),
        }


class Client(asyncio.Protocol):
    """One connection, one request at a time, until `until`."""

    def __init__(self, requests: Sequence[bytes], right: Sequence[Any], first: int, until: float):
        self.requests, self.right, self.k, self.until = requests, right, first, until
        self.found = Measured()
        self.done = asyncio.get_running_loop().create_future()
        self.buffer = bytearray()
        self.needed: int | None = None
        self.waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._send()

    def _send(self) -> None:
        if time.perf_counter() >= self.until:
            self.transport.close()
            return
        self.begun = time.perf_counter()
        self.waiting = True
        self.transport.write(self.requests[self.k % len(self.requests)])

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if self.needed is None:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            at = head.index(b"content-length:") + 15
            self.head, self.start = head, end + 4
            self.needed = end + 4 + int(head[at : (head + b"\r\n").index(b"\r\n", at)])
        if len(self.buffer) < self.needed:
            return
        now = time.perf_counter()
        body = bytes(self.buffer[self.start : self.needed])
        self.buffer.clear()
        self.needed = None
        self.waiting = False
        if not self.head.startswith(b"http/1.1 200"):
            self.found.fail(f"{self.head[9:12].decode()} {body[:80]!r}")
        elif not self.right[self.k % len(self.right)](body):
            self.found.fail("a wrong answer")
        else:
            self.found.times.append(now - self.begun)
        self.k += 1
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting:
            self.found.fail("the connection was closed")
        if not self.done.done():
            self.done.set_result(None)


async def measure(
    port: int, requests: Sequence[bytes], right: Sequence[Any], clients: int, seconds: float
) -> Measured:
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    made = await asyncio.gather(
        *(
            loop.create_connection(
                lambda k=k: Client(requests, right, k, begun + seconds), "127.0.0.1", port
            )
            for k in range(clients)
        )
    )
    await asyncio.gather(*(client.done for _, client in made))
    total = Measured(time.perf_counter() - begun)
    for _, client in made:
        client.found.seconds = 0.0
        total.add(client.found)
    return total


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def started(command: Sequence[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        last = time.monotonic() + 60
        while True:
            assert process.poll() is None, "the server ended"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                assert time.monotonic() < last, "the server does not answer"
                time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(90)


def http(path: str, kind: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def models(name: str, folder: Path, onnx: bool, target: str) -> tuple[Path, Path]:
    """A package, and an ONNX model where one is needed, of the same network: one of
    tilewright/bench/models.py with one float32 input."""
    import torch

    import tilewright as tw
    from tilewright.bench.models import build

    example = build(name, tiny=False)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = example.module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.inner(x)
            return found[0] if isinstance(found, tuple) else found

    net, rows = Network().eval(), example.inputs[0][:1]
    x = torch.cat([rows] * 4)
    batch = torch.export.Dim("batch", min=1, max=64)
    package, model = folder / f"{name}.twp", folder / f"{name}.onnx"
    tw.export(net, x, path=package, dynamic={"x": {0: batch}}, name=name, target=target)
    if onnx:
        axes = {"x": {0: "batch"}}
        torch.onnx.export(net, (x,), str(model), input_names=["x"], dynamic_axes=axes, dynamo=False)
    return package, model


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60, help="of each server, all rounds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="mlp", help="of tilewright/bench/models.py")
    parser.add_argument("--raw", action="store_true", help="tensors as bytes in place of JSON")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--package", type=Path)
    parser.add_argument("--onnx", type=Path)
    parser.add_argument("--keep", type=Path, help="make the models in this folder, and end")
    parser.add_argument("--target", default="host")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-batch", type=int, default=32)
    parser.add_argument("--max-wait-ms", type=float, default=1.0)
    given = parser.parse_args(arguments)
    if given.keep is not None:
        print(*models(given.model, given.keep, True, given.target))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if given.package is None:
            made = models(given.model, Path(folder), given.peer, given.target)
            given.package, given.onnx = made
        rows = compared(given)
    print(json.dumps(rows, indent=1))
    return 1 if any(row["failed"] for row in rows.values() if isinstance(row, dict)) else 0


def compared(given: argparse.Namespace) -> dict[str, Any]:
    random = np.random.default_rng(0)
    with load(given.package) as package:
        (t,) = package.inputs
        shape = [1, *(n for n in t.shape[1:] if isinstance(n, int))]
        inputs = [random.standard_normal(shape, np.float32) for _ in range(INPUTS)]
        wanted = [package(x) for x in inputs]
        (y,) = package.outputs
    port, ours, theirs = free_port(), Measured(), Measured()

    def is_right(want: np.ndarray) -> Any:
        near = 1e-3 * float(np.abs(want).max())

        def judge(body: bytes) -> bool:
            if given.raw:
                plain = len(body) == want.nbytes  # the peer's answer has no header
                got = np.frombuffer(body, np.float32) if plain else from_raw(body, {y.name: "f32"})
                got = next(iter(got.values())) if isinstance(got, dict) else got
            else:
                got = np.array(next(iter(json.loads(body)["outputs"].values())), np.float32)
            return bool(np.allclose(got.reshape(want.shape), want, rtol=0, atol=near))

        return judge

    right = [is_right(w) for w in wanted]
    raw = [to_raw({t.name: x}, {t.name: "f32"}) for x in inputs]
    lists = [json.dumps({"inputs": {t.name: x.tolist()}}).encode() for x in inputs]
    kind, bodies = (RAW, raw) if given.raw else ("application/json", lists)
    own = [sys.executable, "-m", "tilewright", "serve", str(given.package), "--port", str(port)]
    own += ["--workers", str(given.workers), "--max-batch", str(given.max_batch)]
    own += ["--max-wait-ms", str(given.max_wait_ms)]
    own += ["--threads", str(given.threads)] if given.threads else []
    servers = [(own, "/v1/run", ours)]
    if given.peer:
        peer = [sys.executable, "-m", "tests.serve.peer", str(given.onnx), str(port)]
        servers.append((peer, "/v1/raw" if given.raw else "/v1/run", theirs))
    for _ in range(given.rounds):
        for command, path, total in servers:
            requests = [http(path, kind, body) for body in bodies]
            with started(command, port):
                asyncio.run(measure(port, requests, right, given.clients, 1.0))  # warm
                seconds = given.seconds / given.rounds
                total.add(asyncio.run(measure(port, requests, right, given.clients, seconds)))
    rows: dict[str, Any] = {"tilewright serve": ours.row()}
    if given.peer:
        rows["FastAPI, uvicorn, ONNX Runtime"] = theirs.row()
        ratio = rows["tilewright serve"]["per second"] / (theirs.row()["per second"] or 1.0)
        rows["ours / theirs"] = round(ratio, 2)
    rows["cores"] = len(os.sched_getaffinity(0))
    return rows


if __name__ == "__main__":
    sys.exit(main())
