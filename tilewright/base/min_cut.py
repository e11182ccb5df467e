"""The cheapest set of edges that separates two nodes of a directed graph: maximum flow by layers
(Dinic's method), on whole numbers, so that the same graph always gives the same cut."""

from __future__ import annotations

INFINITE = 1 << 62


class Network:
    """Edges with capacities between nodes that are numbers. Node 0 is the source, 1 the sink."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._out: list[list[int]] = [[], []]  # by node: its edges, and those that lead back to it
        self._to: list[int] = []
        self._left: list[int] = []  # what an edge can still take; the next one is its way back

    def node(self) -> int:
        self._out.append([])
        return len(self._out) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        for a, b, size in ((start, end, capacity), (end, start, 0)):
            self._out[a].append(len(self._to))
            self._to.append(b)
            self._left.append(size)

    def source_side(self) -> list[bool]:
        """By node: is it on the source's side of the smallest cut? Of several such cuts, the one
        next to the source. Once only: the flow stays in the network."""
        while True:
            level = self._levels()
            if level[self.SINK] < 0:
                return [x >= 0 for x in level]
            self._fill(level)

    def _levels(self) -> list[int]:
        """Steps from the source, over edges with room; -1 of what is not reached."""
        level = [-1] * len(self._out)
        level[self.SOURCE] = 0
        front = [self.SOURCE]
        while front:
            reached = []
            for n in front:
                for e in self._out[n]:
                    m = self._to[e]
                    if self._left[e] and level[m] < 0:
                        level[m] = level[n] + 1
                        reached.append(m)
            front = reached
        return level

    def _fill(self, level: list[int]) -> None:
        """Flow over paths that go from level to level, until there is none left."""
        out, to, left = self._out, self._to, self._left
        tried = [0] * len(out)  # by node: edges before this one lead nowhere
        path: list[int] = []
        n = self.SOURCE
        while True:
            if n == self.SINK:
                room = min(left[e] for e in path)
                full = len(path)
                for k in range(len(path) - 1, -1, -1):
                    left[path[k]] -= room
                    left[path[k] ^ 1] += room
                    if not left[path[k]]:
                        full = k
                n = to[path[full] ^ 1]
                del path[full:]
                continue
            edges = out[n]
            while tried[n] < len(edges):
                e = edges[tried[n]]
                if left[e] and level[to[e]] == level[n] + 1:
                    break
                tried[n] += 1
            if tried[n] < len(edges):
                path.append(edges[tried[n]])
                n = to[path[-1]]
            elif path:
                n = to[path.pop() ^ 1]
                tried[n] += 1
            else:
                return
