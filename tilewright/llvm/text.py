"""A function of LLVM text under construction: its lines, and registers by number."""

from __future__ import annotations

from collections.abc import Callable


class Text:
    def __init__(self, stem: str = "v") -> None:
        self.out: list[str] = []
        self.stem, self.count = stem, 0

    def put(self, text: str) -> str:
        """An instruction with a result, and the register that has it."""
        self.count += 1
        self.out.append(f"  %{self.stem}{self.count} = {text}")
        return f"%{self.stem}{self.count}"

    def line(self, text: str) -> None:
        self.out.append(f"  {text}")

    def label(self, name: str) -> None:
        self.out.append(f"{name}:")


def splat(put: Callable[[str], str], x: str, t: str, lanes: int) -> str:
    """One value in every lane."""
    v = f"<{lanes} x {t}>"
    one = put(f"insertelement {v} poison, {t} {x}, i64 0")
    return put(f"shufflevector {v} {one}, {v} poison, <{lanes} x i32> zeroinitializer")


def rounded_down(put: Callable[[str], str], op: str, a: str, b: str) -> str:
    """`floordiv` or `mod` of a number of any sign and a positive one, as in Python."""
    down = put(f"sdiv i64 {a}, {b}")
    rest = put(f"sub i64 {a}, {put(f'mul i64 {down}, {b}')}")
    below = put(f"icmp slt i64 {rest}, 0")
    if op == "floordiv":
        return put(f"select i1 {below}, i64 {put(f'sub i64 {down}, 1')}, i64 {down}")
    return put(f"select i1 {below}, i64 {put(f'add i64 {rest}, {b}')}, i64 {rest}")
