"""Integers of WebAssembly: seven bits a byte, the lowest first; and a reader of its binary form."""

from __future__ import annotations


def unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    out = bytearray()
    while not -64 <= value < 64:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value & 127)
    return bytes(out)


def vector(items: list[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


def name(text: str) -> bytes:
    data = text.encode()
    return unsigned(len(data)) + data


class Reader:
    """Reads bytes from `at` to `end`; a ValueError says what is missing."""

    def __init__(self, data: bytes, at: int, end: int):
        if not 0 <= at <= end <= len(data):
            raise ValueError("a part lies beyond its end")
        self.data, self.at, self.end = data, at, end

    @property
    def more(self) -> bool:
        return self.at < self.end

    def take(self, count: int) -> bytes:
        if count > self.end - self.at:
            raise ValueError("it ends too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def byte(self) -> int:
        at = self.at
        if at >= self.end:
            raise ValueError("it ends too early")
        self.at = at + 1
        return self.data[at]

    def unsigned(self) -> int:
        value = self.byte()
        if value < 128:
            return value
        value &= 127
        for shift in range(7, 35, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if value >> 32:
                    break
                return value
        raise ValueError("a number has more than 32 bits")

    def signed(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value - (1 << shift + 7) if byte & 64 else value
        raise ValueError("a number has more than 64 bits")

    def name(self) -> str:
        return self.take(self.unsigned()).decode()

    def part(self) -> Reader:
        """What follows its size."""
        size = self.unsigned()
        start = self.at
        self.take(size)
        return Reader(self.data, start, start + size)

    def count(self) -> int:
        """A number of items, each of at least one byte."""
        found = self.unsigned()
        if found > self.end - self.at:
            raise ValueError(f"{found} items do not fit into what is left")
        return found
