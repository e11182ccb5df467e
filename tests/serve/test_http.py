"""The parser of requests: whole ones, wrong ones, and bytes that arrive in any pieces."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.generators import checked
from tests.seeds import drawn
from tilewright.serve.http import MAX_FIELDS, MAX_HEAD, Fault, Parser, Request

LIMIT = 1000


def parsed(pieces: Sequence[bytes], limit: int = LIMIT) -> tuple[list[Request], Fault | None]:
    parser, found = Parser(limit), []
    for piece in pieces:
        parser.feed(piece)
        try:
            while (request := parser.take()) is not None:
                found.append(request)
        except Fault as fault:
            return found, fault
    return found, None


def test_requests_follow_each_other() -> None:
    found, fault = parsed(
        [
            b"POST /a?b=c HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nxyz"
            b"\r\nGET / HTTP/1.0\r\n\r\n"
            b"PUT /c HTTP/1.1\r\nhost:h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            b"3;why=not\r\nabc\r\n0A\r\n0123456789\r\n0\r\nLater: field\r\n\r\n"
            b"GET http://h:80/last?x HTTP/1.1\r\nHost: \th \r\nA: 1\r\nA: 2\r\n\r\n"
        ]
    )
    assert fault is None
    assert [(r.method, r.path, r.body, r.keep_alive) for r in found] == [
        ("POST", "/a", b"xyz", True),
        ("GET", "/", b"", False),
        ("PUT", "/c", b"abc0123456789", False),
        ("GET", "/last", b"", True),
    ]
    assert found[3].fields == {"host": "h", "a": "1, 2"}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"GET / HTTP/1.1\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\x00\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 300, 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n: x\r\n", 400),
        (b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * MAX_HEAD, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:b\r\n" * MAX_FIELDS + b"\r\n", 431),
    ],
)
def test_what_is_refused(text: bytes, status: int) -> None:
    for pieces in ([text], [text[k : k + 1] for k in range(len(text))]):
        found, fault = parsed(pieces)
        assert not found and fault is not None and fault.status == status, (pieces, fault)


def test_leave_to_send_a_body() -> None:
    parser = Parser(LIMIT)
    parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
    assert parser.take() is None and parser.wants_continue
    parser.feed(b"ab")
    request = parser.take()
    assert request is not None and request.body == b"ab" and not parser.wants_continue


def cut(text: bytes, r: random.Random) -> list[bytes]:
    places = sorted(r.randrange(len(text) + 1) for _ in range(r.choice((0, 1, 3, 20))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def random_request(r: random.Random) -> tuple[bytes, tuple[str, str, bytes]]:
    method = r.choice(("GET", "POST", "PUT"))
    path = "/" + "".join(r.choice("ab/.-%20") for _ in range(r.randrange(9)))
    body = r.randbytes(r.choice((0, 1, 7, 300)))
    lines = [f"{method} {path} HTTP/1.1", "Host: there"]
    lines += [f"X-{k}:{r.choice((' ', '', '  '))}{r.randrange(99)}" for k in range(r.randrange(4))]
    if r.random() < 0.5:
        lines.append(f"Content-Length: {len(body)}")
        data = body
    else:
        lines.append("Transfer-Encoding: Chunked")
        parts = [p for p in cut(body, r) if p]
        data = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    r.shuffle(tail := lines[1:])
    head = "\r\n".join([lines[0], *tail]).encode() + b"\r\n\r\n"
    return head + data, (method, path, body)


def check_seed(seed: int) -> None:
    """Whole requests are found however they are cut; damaged ones are found or refused, and the
    cuts make no difference."""
    r = random.Random(seed)
    made = [random_request(r) for _ in range(r.randrange(1, 5))]
    text = b"".join(t for t, _ in made)
    found, fault = parsed(cut(text, r))
    assert fault is None, f"refused: {fault}\n{text!r}"
    assert [(q.method, q.path, q.body) for q in found] == [wanted for _, wanted in made], text
    damaged = bytearray(text)
    for _ in range(r.choice((1, 2, 5))):
        at = r.randrange(len(damaged))
        kind = r.randrange(4)
        if kind == 0:
            damaged[at] = r.randrange(256)
        elif kind == 1:
            damaged[at:at] = r.choice((b"\r\n", b"\n", b"\r", b"0", b":", b" ", b"\0"))
        elif kind == 2:
            del damaged[at : at + r.choice((1, 2, 9))]
        else:
            damaged[at:at] = damaged[at : at + 30]
        if not damaged:
            return
    whole = parsed([bytes(damaged)])
    parts = parsed(cut(bytes(damaged), r))
    shown = [(q.method, q.path, dict(q.fields), q.body) for q in whole[0]]
    assert shown == [(q.method, q.path, dict(q.fields), q.body) for q in parts[0]], bytes(damaged)
    assert (whole[1] is None) == (parts[1] is None), (bytes(damaged), whole[1], parts[1])


GENERATOR = checked("http", check_seed)


@pytest.mark.parametrize("first", drawn(range(0, 20_000, 500), quick=1))
def test_random_requests(first: int) -> None:
    for seed in range(first, first + 500):
        check_seed(seed)
