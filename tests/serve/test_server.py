"""A real server and real clients: answers, refusals, batches, limits, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.serve.load import measure
from tests.serve.running import Described, Twice, ask, connected, serving
from tests.serve.test_http import random_request
from tilewright.base.errors import Invalid
from tilewright.serve.batching import rows_are_apart, rows_of, usual_rows
from tilewright.serve.server import Server, Settings
from tilewright.serve.tensors import RAW, from_raw, to_raw

X = [[1.0, 2.5], [3.0, -1.0]]
Y = [[2.0, 5.0], [6.0, -2.0]]
RUN = "/v1/run"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(Twice(), max_body=10_000) as made:
        yield made


def test_json_and_raw_tensors(server: Server) -> None:
    client = connected(server)
    status, found, _ = ask(client, "POST", RUN, {"inputs": {"x": X}})
    assert (status, found) == (200, {"outputs": {"y": Y}})
    data = base64.b64encode(np.asarray(X, "f4").tobytes()).decode()
    tensor = {"shape": [2, 2], "dtype": "f32", "data": data}
    status, found, _ = ask(client, "POST", RUN, {"inputs": {"x": tensor}, "encoding": "base64"})
    y = found["outputs"]["y"]
    assert status == 200 and (y["shape"], y["dtype"]) == ([2, 2], "f32")
    assert np.frombuffer(base64.b64decode(y["data"]), "f4").tolist() == [2, 5, 6, -2]
    body = to_raw({"x": np.asarray(X, "f4")}, {"x": "f32"})
    status, found, fields = ask(client, "POST", RUN, body, Content_Type=RAW)
    assert status == 200 and fields["Content-Type"] == RAW
    assert from_raw(found, {"y": "f32"})["y"].tolist() == Y
    # Each may be asked for with the other.
    status, found, _ = ask(client, "POST", RUN, body, Content_Type=RAW, Accept="application/json")
    assert (status, found) == (200, {"outputs": {"y": Y}})


def test_what_json_has_no_number_for(server: Server) -> None:
    tensor = {"x": np.asarray([[np.nan, np.inf, -np.inf, 1]], "f4")}
    found = ask(
        connected(server),
        "POST",
        RUN,
        to_raw(tensor, {"x": "f32"}),
        Content_Type=RAW,
        Accept="application/json",
    )
    assert found[1] == {"outputs": {"y": [["NaN", "Infinity", "-Infinity", 2.0]]}}


TENSOR = {"shape": [1, 1], "dtype": "f32", "data": "AACAPw=="}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "not JSON"),
        (b'{"inputs": {"x": [[NaN]]}}', "send the tensor as base64"),
        (b"[" * 9000, "not JSON"),
        ([], '{"inputs": {name: tensor, …}}'),
        ({"inputs": {}, "also": 1}, "'also'"),
        ({"inputs": {"x": X}, "encoding": "hex"}, "'lists' or 'base64'"),
        ({"inputs": {"z": X}}, "there is no input 'z': the inputs are x"),
        ({"inputs": {}}, "the inputs are x"),
        ({"inputs": {"x": [[1], [2, 3]]}}, "lists of equal lengths"),
        ({"inputs": {"x": [["1"]]}}, "of numbers of f32"),
        ({"inputs": {"x": [[True]]}}, "of numbers of f32"),
        ({"inputs": {"x": 10**400}}, "of numbers of f32"),
        ({"inputs": {"x": [1]}}, "two dims"),
        ({"inputs": {"x": {**TENSOR, "dtype": "i32"}}}, "x is i32, and f32 is needed"),
        ({"inputs": {"x": {**TENSOR, "shape": [2, 1]}}}, "f32[2,1] has 8"),
        ({"inputs": {"x": {**TENSOR, "shape": [-1, -1]}}}, "not a list of sizes"),
        ({"inputs": {"x": {**TENSOR, "data": "?"}}}, "not base64"),
        ({"inputs": {"x": {"data": ""}}}, '"shape"'),
    ],
)
def test_malformed_json(server: Server, body: Any, why: str) -> None:
    status, found, _ = ask(connected(server), "POST", RUN, body)
    assert status == 400 and why in found["error"], found


HEADER = {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


@pytest.mark.parametrize(
    ("header", "data", "why"),
    [
        (b"abc", None, "8 bytes"),
        (b"\xff" * 8, None, "the body ends before"),
        (b"{", b"", "header is not JSON"),
        (b"[]", b"", "header is not {"),
        ({"z": HEADER["x"]}, b"1234", "there is no input 'z'"),
        ({"x": {**HEADER["x"], "dtype": "I64"}}, b"1234", "x is i64, and f32 is needed"),
        ({"x": {**HEADER["x"], "data_offsets": [0, 5]}}, b"1234", "data_offsets of x"),
        ({"x": {**HEADER["x"], "shape": [2]}}, b"1234", "f32[2] has 8"),
        ({"x": {"dtype": "F32"}}, b"", "not dtype, shape"),
        (HEADER, b"12345", "5 follow the header"),
    ],
)
def test_malformed_raw(header: Any, data: bytes | None, why: str) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = text if data is None else len(text).to_bytes(8, "little") + text + data
    with pytest.raises(Invalid) as problem:
        from_raw(body, {"x": "f32"})
    assert why in str(problem.value)


def test_dtypes_in_json() -> None:
    dtypes = {"b": "bf16", "f": "bool", "i": "i8", "u": "u64"}
    shape = dict.fromkeys(dtypes, ("n",))

    class Same(Twice):
        def dims_of(self, inputs: Any) -> dict[str, int]:
            return {"n": 2}

        def run(self, names: Any, inputs: Any) -> list[Any]:
            return [inputs[name] for name in dtypes]

    tensors = [Described(name, dtype, shape[name]) for name, dtype in dtypes.items()]
    given = {"b": [1.5, 1e9], "f": [True, False], "i": [-128, 3], "u": [2**64 - 1, 2**63]}
    with serving(Same(inputs=tensors, outputs=tensors)) as made:
        status, found, _ = ask(connected(made), "POST", RUN, {"inputs": given})
        assert status == 200
        assert found["outputs"] == {**given, "b": [1.5, 998244352.0]}
        status, found, _ = ask(connected(made), "POST", RUN, {"inputs": {"i": [128, 0]}})
        assert status == 400 and "i8 cannot hold" in found["error"]


def test_pages(server: Server) -> None:
    client = connected(server)
    assert ask(client, "POST", RUN, {"inputs": {"x": X}})[0] == 200
    status, found, _ = ask(client, "GET", "/health")
    assert (status, found) == (200, {"status": "ok", "model": "twice"})
    status, found, fields = ask(client, "GET", "/metrics")
    text = found.decode()
    assert status == 200 and "version=0.0.4" in fields["Content-Type"]
    assert 'tilewright_responses_total{code="200"}' in text
    assert 'tilewright_latency_seconds_bucket{le="+Inf"}' in text
    status, found, _ = ask(client, "GET", "/")
    page = found.decode()
    assert status == 200 and "<h1>twice</h1>" in page and "[n, m]" in page and "ms</td>" in page
    assert ask(client, "HEAD", "/")[1] == b""
    assert ask(client, "GET", "/nothing")[0] == 404
    status, _, fields = ask(client, "GET", RUN)
    assert status == 405 and fields["Allow"] == "POST"
    assert ask(client, "DELETE", "/")[0] == 405
    assert ask(client, "POST", RUN, b"a", Content_Type="text/csv")[0] == 415


def raw(server: Server, sent: bytes) -> bytes:
    """All that comes back on a connection of its own."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as s:
        s.sendall(sent)
        return b"".join(iter(lambda: s.recv(65536), b""))


def test_connections(server: Server) -> None:
    body = json.dumps({"inputs": {"x": [[1]]}}).encode()
    post = b"POST /v1/run HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    # Three at once: all are answered, in their order.
    last = post.replace(b"Host: h", b"Host: h\r\nConnection: close")
    found = raw(server, post + b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n" + last)
    answers = found.split(b"HTTP/1.1 200 OK")
    assert [b"outputs" in a for a in answers] == [False, True, False, True]
    # A body in chunks, after leave to send it.
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST /v1/run HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
    found = raw(server, head + b"Connection: close\r\n\r\n" + chunked)
    assert found.startswith(b"HTTP/1.1 200") and b'{"outputs":{"y":[[2.0]]}}' in found
    with socket.create_connection(("127.0.0.1", server.port), 20) as s:
        s.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert s.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        s.sendall(chunked)
        assert s.recv(100).startswith(b"HTTP/1.1 200 OK")
    # What is no request, and what is too large: an answer, though more is being sent.
    found = raw(server, b"\x16\x03\x01 no\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 400") and b"Connection: close" in found
    large = b"POST /v1/run HTTP/1.1\r\nHost: h\r\nContent-Length: 3000000\r\n\r\n"
    found = raw(server, large + b"a" * 3_000_000)
    assert found.startswith(b"HTTP/1.1 413") and b"at most 10000" in found


def test_damaged_requests(server: Server) -> None:
    """Whatever arrives, the connection ends and the next client is served."""
    r = random.Random(0)
    for _ in range(60):
        text = bytearray(
            random_request(r)[0].replace(b"Host: there", b"Host: h\r\nConnection: close")
        )
        for _ in range(r.choice((1, 3))):
            text[r.randrange(len(text))] = r.randrange(256)
        with socket.create_connection(("127.0.0.1", server.port), 20) as s:
            s.sendall(text)
            s.shutdown(socket.SHUT_WR)
            found = b"".join(iter(lambda s=s: s.recv(65536), b""))
        assert not found or found.startswith(b"HTTP/1.1 "), found
    assert ask(connected(server), "GET", "/health")[0] == 200


def together(server: Server, inputs: list[Any]) -> list[tuple[int, Any]]:
    with ThreadPoolExecutor(len(inputs)) as threads:
        asked = [
            threads.submit(ask, connected(server), "POST", RUN, {"inputs": {"x": x}})
            for x in inputs
        ]
        return [f.result()[:2] for f in asked]


def until(condition: Any) -> None:
    last = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < last, "this takes too long"
        time.sleep(0.005)


def test_requests_run_together() -> None:
    package = Twice()
    rows = usual_rows(package)
    assert rows is not None and rows.symbol == "n"
    inputs: list[Any] = [[[k, 1]] for k in range(12)] + [[[k]] * 3 for k in range(3)]
    with serving(package, rows, max_batch=8, workers=1, max_wait_ms=50) as server:
        package.gate.clear()
        threading.Timer(0.3, package.gate.set).start()
        found = together(server, inputs)
    for x, (status, answer) in zip(inputs, found, strict=True):
        assert status == 200 and answer["outputs"]["y"] == [[2 * v for v in row] for row in x]
    assert len(package.ran) < len(inputs) and max(n for n, _ in package.ran) <= 8
    assert sum(n for n, _ in package.ran) == 12 + 9


def test_200_clients() -> None:
    package = Twice()
    bodies = [json.dumps({"inputs": {"x": [[k, 1]]}}).encode() for k in range(12)]
    head = b"POST /v1/run HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
    right = [
        lambda body, k=k: json.loads(body) == {"outputs": {"y": [[2.0 * k, 2.0]]}}
        for k in range(12)
    ]
    with serving(package, rows_of(package, "n")) as server:
        requests = [head % len(body) + body for body in bodies]
        found = asyncio.run(measure(server.port, requests, right, 200, 0.5))
    assert found.failed == 0, found.why
    assert len(found.times) >= 200 and len(package.ran) < len(found.times)


def test_one_bad_request_among_others() -> None:
    package = Twice()
    with serving(package, rows_of(package, "n"), max_wait_ms=200, workers=1) as server:
        found = together(server, [[[1]], [[13]], [[2]]])
    assert [status for status, _ in found] == [200, 400, 200]
    assert found[1][1] == {"error": "13 is refused"}


def test_which_dim_is_rows() -> None:
    package = Twice()
    assert rows_are_apart(package, rows_of(package, "n")) is True
    assert rows_are_apart(Twice(mixes=True), rows_of(package, "n")) is False
    with pytest.raises(Invalid, match="has no dim 'k'"):
        rows_of(package, "k")
    other = Twice(outputs=(Described("y", "f32", ("n*2", "m")),))
    assert usual_rows(other) is None
    with pytest.raises(Invalid, match="y does not have it"):
        rows_of(other, "n")
    assert rows_of(other, "m").inputs == {"x": 1}


def test_a_full_queue() -> None:
    package = Twice()
    with serving(package, workers=1, max_queue=2) as server:
        package.gate.clear()
        with ThreadPoolExecutor(3) as threads:
            client = [connected(server) for _ in range(4)]
            body = {"inputs": {"x": X}}
            asked = [threads.submit(ask, client[0], "POST", RUN, body)]
            until(lambda: server.batcher.running == 1)
            asked += [threads.submit(ask, c, "POST", RUN, body) for c in client[1:3]]
            until(lambda: server.batcher.waiting == 2)
            status, found, fields = ask(client[3], "POST", RUN, body)
            assert status == 503 and "2 requests wait" in found["error"]
            assert fields["Retry-After"] == "1"
            assert ask(client[3], "GET", "/health")[0] == 200
            package.gate.set()
            assert [f.result()[0] for f in asked] == [200] * 3


def test_a_mistake_has_words() -> None:
    class Broken(Twice):
        def dims_of(self, inputs: Any) -> dict[str, int]:
            raise MemoryError("no room")

    with serving(Broken()) as server:
        client = connected(server)
        for _ in range(2):
            status, found, _ = ask(client, "POST", RUN, {"inputs": {"x": X}})
            assert status == 500 and found["error"] == "the run failed: MemoryError: no room"


def test_time_runs_out() -> None:
    package = Twice()
    with serving(package, workers=1, timeout=0.4) as server:
        package.gate.clear()
        status, found, _ = ask(connected(server), "POST", RUN, {"inputs": {"x": X}})
        assert status == 504 and "within 0.4 seconds" in found["error"]
        package.gate.set()
        found = raw(server, b"POST /v1/run HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n{")
        assert found.startswith(b"HTTP/1.1 408")
        assert ask(connected(server), "POST", RUN, {"inputs": {"x": X}})[0] == 200


def test_a_client_that_leaves() -> None:
    package = Twice()
    with serving(package, workers=1) as server:
        package.gate.clear()
        clients = [connected(server) for _ in range(2)]
        for client in clients:
            client.request("POST", RUN, json.dumps({"inputs": {"x": X}}))
        until(lambda: server.batcher.running == 1 and server.batcher.waiting == 1)
        for client in clients:
            client.close()
        until(lambda: server.batcher.waiting == 0)
        package.gate.set()
        assert ask(connected(server), "POST", RUN, {"inputs": {"x": X}})[0] == 200
    assert len(package.ran) == 2


PROGRAM = """
import asyncio, threading, time
from tests.serve.load import measure
from tests.serve.test_http import random_request
from tests.serve.running import Twice
from tilewright.serve.server import Server, Settings, serve
package = Twice()
package.gate.clear()
def ready(server):
    print(server.port, flush=True)
server = Server(package, Settings(port=0, workers=1))
def release():
    while not server.stopping:
        time.sleep(0.01)
    time.sleep(0.2)
    package.gate.set()
threading.Thread(target=release).start()
asyncio.run(serve(server, ready))
print("ended")
"""


def test_the_end_answers_what_began() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        body = json.dumps({"inputs": {"x": X}}).encode()
        head = b"POST /v1/run HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
        running, half, idle = (socket.create_connection(("127.0.0.1", port), 20) for _ in range(3))
        with running, half, idle:
            running.sendall(head + body)
            half.sendall(head + body[:5])
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert idle.recv(100) == b""
            half.sendall(body[5:])
            for s in (running, half):
                found = b"".join(iter(lambda s=s: s.recv(65536), b""))
                assert found.startswith(b"HTTP/1.1 200 OK") and b"Connection: close" in found
        assert process.stdout.read().strip() == "ended"
        assert process.wait(20) == 0


def test_settings_are_checked() -> None:
    with pytest.raises(Invalid, match="workers is 0, and 1 is the least"):
        Settings(workers=0)
    with pytest.raises(Invalid, match="65535"):
        Settings(port=70000)
