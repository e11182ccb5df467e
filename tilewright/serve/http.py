"""HTTP/1.1 messages: a small, strict parser of requests, and responses as bytes.

What two programs could read differently is refused (a line that ends without CR, a length given
twice or beside chunks, white space before a colon): a proxy in front and the server behind it then
agree on where a request ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

MAX_HEAD = 16 << 10
MAX_FIELDS = 100
# The size of a chunk with its extensions; trailers count as a head.
_MAX_LINE = 256

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") ([!-~]+) HTTP/(\d)\.(\d)")
_AUTHORITY = re.compile("https?://[^/?]*", re.I)  # proxies name the whole address
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_ALONE = re.compile(rb"(?<!\r)\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class Fault(Exception):
    """A request that is answered with an error; the connection cannot be used after it."""

    def __init__(self, status: int, why: str):
        self.status = status
        super().__init__(why)


@dataclass
class Request:
    method: str
    path: str  # without the query
    fields: Mapping[str, str]  # by names in lower case
    keep_alive: bool
    body: bytes = b""


@dataclass
class Parser:
    """Bytes of one connection in, requests out, one at a time: `feed`, then `take` until None.

    `wants_continue` says that a client waits for leave to send the body of its request.
    """

    max_body: int
    wants_continue: bool = False
    _buffer: bytearray = field(default_factory=bytearray)
    _searched: int = 0  # no end of a head begins before it
    _request: Request | None = None  # whose body has not arrived whole
    _left: int = 0  # bytes of the body, or of the chunk, that are missing
    _chunks: bytearray | None = None  # the body so far, of a request in chunks
    _stage: str = "size"  # of chunks: size, data, end, trailers

    @property
    def waiting(self) -> int:
        """Bytes that arrived and belong to no request yet."""
        return len(self._buffer)

    @property
    def within(self) -> bool:
        """Whether a request has begun and not arrived whole."""
        return self._request is not None or bool(self._buffer)

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def take(self) -> Request | None:
        """The next request that has arrived whole. Raises `Fault`."""
        if self._request is None and not self._head():
            return None
        request = self._request
        assert request is not None
        if self._chunks is not None:
            if not self._in_chunks(self._chunks):
                return None
            request.body = bytes(self._chunks)
        else:
            if len(self._buffer) < self._left:
                return None
            request.body = bytes(memoryview(self._buffer)[: self._left])
            del self._buffer[: self._left]
        self._request, self._chunks, self.wants_continue = None, None, False
        return request

    def _head(self) -> bool:
        """Takes the lines before a body; whether they have arrived."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # some clients end a body with one more
            del buffer[:2]
            self._searched = 0
        end = buffer.find(b"\r\n\r\n", self._searched)
        if end < 0:
            if len(buffer) > MAX_HEAD:
                raise Fault(431, f"the request's head has more than {MAX_HEAD} bytes")
            alone = _ALONE.search(buffer, self._searched)
            self._searched = max(0, len(buffer) - 3)
            if alone:
                raise Fault(400, "a line of the request's head ends without a carriage return")
            return False
        if end > MAX_HEAD:
            raise Fault(431, f"the request's head has more than {MAX_HEAD} bytes")
        lines = bytes(buffer[:end]).split(b"\r\n")
        del buffer[: end + 4]
        self._searched = 0
        self._begin(lines)
        return True

    def _begin(self, lines: list[bytes]) -> None:
        found = _REQUEST.fullmatch(lines[0])
        if found is None:
            raise Fault(400, "the first line is not `METHOD PATH HTTP/1.1`")
        method, target, major, minor = found.groups()
        if major != b"1":
            raise Fault(505, "this server speaks HTTP/1.1")
        fields = _fields(lines[1:])
        modern = minor != b"0"
        if modern and "host" not in fields:
            raise Fault(400, "the field Host is missing")
        connection = {x.strip() for x in fields.get("connection", "").lower().split(",")}
        keep = "close" not in connection and (modern or "keep-alive" in connection)
        path = _AUTHORITY.sub("", target.decode("ascii")).partition("?")[0] or "/"
        self._request = Request(method.decode("ascii"), path, fields, keep)
        self._body(fields, modern)

    def _body(self, fields: Mapping[str, str], modern: bool) -> None:
        coding, length = fields.get("transfer-encoding"), fields.get("content-length")
        if coding is not None:
            if length is not None:
                raise Fault(400, "Content-Length and Transfer-Encoding are both given")
            if not modern:
                raise Fault(400, "HTTP/1.0 has no Transfer-Encoding")
            if coding.lower() != "chunked":
                raise Fault(501, f"Transfer-Encoding {coding!r} is not known: send `chunked`")
            self._chunks, self._stage = bytearray(), "size"
        else:
            if length is not None and not _LENGTH.fullmatch(length.encode("latin-1")):
                raise Fault(400, f"Content-Length {length!r} is not a number of bytes")
            self._left = int(length or 0)
            self._within_limit(self._left)
        expected = fields.get("expect")
        if expected is not None:
            if expected.lower() != "100-continue":
                raise Fault(417, f"Expect {expected!r} is not known")
            self.wants_continue = modern and (self._chunks is not None or self._left > 0)

    def _within_limit(self, size: int) -> None:
        if size > self.max_body:
            raise Fault(
                413, f"the body has {size} bytes or more, and at most {self.max_body} are taken"
            )

    def _in_chunks(self, body: bytearray) -> bool:
        """Takes what arrived of a body in chunks; whether it is whole."""
        buffer = self._buffer
        while True:
            if self._stage == "data":
                part = min(self._left, len(buffer))
                body += memoryview(buffer)[:part]
                del buffer[:part]
                self._left -= part
                if self._left:
                    return False
                self._stage = "end"
            if self._stage == "end":
                if len(buffer) < 2:
                    return False
                if buffer[:2] != b"\r\n":
                    raise Fault(400, "a chunk is longer than it says")
                del buffer[:2]
                self._stage = "size"
            if self._stage == "size":
                line = self._line(_MAX_LINE, "the line with a chunk's size is too long")
                if line is None:
                    return False
                found = _CHUNK.fullmatch(line)
                if found is None:
                    raise Fault(400, "a chunk does not begin with its size in hexadecimal digits")
                self._left = int(found[1], 16)
                self._within_limit(len(body) + self._left)
                self._stage = "data" if self._left else "trailers"
                self._left = self._left or MAX_HEAD  # of trailers
            if self._stage == "trailers":
                while line := self._line(self._left, "the trailers are too long"):
                    self._left -= len(line)
                    _fields([line])
                return line is not None

    def _line(self, limit: int, too_long: str) -> bytes | None:
        """Takes one line, without its end; None where it has not arrived."""
        end = self._buffer.find(b"\r\n", 0, limit + 2)
        if end < 0:
            if len(self._buffer) > limit:
                raise Fault(400, too_long)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _fields(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_FIELDS:
        raise Fault(431, f"the request's head has more than {MAX_FIELDS} fields")
    fields: dict[str, str] = {}
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise Fault(400, "a line of the request's head is not `Name: value`")
        name, value = found[1].decode("ascii").lower(), found[2].decode("latin-1")
        if name in fields:
            if name in ("host", "content-length", "transfer-encoding", "content-type", "expect"):
                raise Fault(400, f"the field {found[1].decode('ascii')} is given twice")
            value = f"{fields[name]}, {value}"
        fields[name] = value
    return fields


JSON = "application/json"


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes
    kind: str = JSON
    fields: tuple[tuple[str, str], ...] = ()

    def encoded(self, date: str, keep_alive: bool, head_only: bool = False) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Date: {date}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "X-Content-Type-Options: nosniff",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
            *(f"{name}: {value}" for name, value in self.fields),
        ]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        return head if head_only else head + self.body
