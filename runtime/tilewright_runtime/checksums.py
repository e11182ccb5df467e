"""BLAKE2bp: the sum of four sums, of every fourth block each, which vectors compute at once."""

from __future__ import annotations

from tilewright_runtime.package import blake2b

_BLOCK, _LANES, _BYTES = 128, 4, 64


class Blake2bp:
    """Like the classes of hashlib, with 64 bytes of result."""

    __slots__ = ("_lanes", "_left", "_next")

    def __init__(self) -> None:
        tree = {"fanout": _LANES, "depth": 2, "inner_size": _BYTES}
        self._lanes = [blake2b(node_offset=k, last_node=k == 3, **tree) for k in range(_LANES)]
        self._left, self._next = b"", 0

    def update(self, piece: bytes | memoryview) -> None:
        content = self._left + bytes(piece)
        end = len(content) // _BLOCK * _BLOCK
        for at in range(0, end, _BLOCK):
            self._lanes[self._next].update(content[at : at + _BLOCK])
            self._next = (self._next + 1) % _LANES
        self._left = content[end:]

    def hexdigest(self) -> str:
        lanes = [x.copy() for x in self._lanes]
        lanes[self._next].update(self._left)
        root = blake2b(fanout=_LANES, depth=2, node_depth=1, inner_size=_BYTES, last_node=True)
        for x in lanes:
            root.update(x.digest())
        return root.hexdigest()
