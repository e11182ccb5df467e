"""Kernels that compute one scalar function, for measuring its errors.

For results of 16 bits a GPU's instructions are used. What such a function gives as a float32 is
seen in three results of 16 bits: its first digits, those that are left, and the rest.
"""

from __future__ import annotations

from tilewright.kernel.nest import Nest
from tilewright.kernel.text import parse_nest

# Units in the last place of a float32 that functions for results of 16 bits may be off by. 70 are
# less than 2^-17 of the result; of erfc it is 2^-10 at most, a quarter of a unit of bf16.
SHORT = {"exp": 70.0, "exp2": 3.0, "rsqrt": 3.0, "sigmoid": 3.0, "erfc": 8192.0}
OF_TERMS = 3.0  # the same of functions that are terms of sums
# Below this the parts of a result are subnormal numbers and lose digits, or nothing is promised.
LEAST = dict.fromkeys(SHORT, 2.0**-100) | {"tanh": 2.0**-100, "erfc": 2.0**-55}
PARTS = ("h", "m", "l")


def term_nest(name: str, count: int, threads: int = 256) -> Nest:
    """y = name(x) of so many floats, each the only term of a sum."""
    at = f"{threads}*b+t"
    return parse_nest(f"""
nest k
  in x: f32[{count}]
  out y: f32[{count}]
  local s: f32[1]
  block.x b in {count // threads}:
    thread.x t in {threads}:
      alloc s
      s: s[0] = 0.0
      s: s[0] add= {name}(x[{at}])
      y: y[{at}] = s[0]
""")


def function_nest(name: str, count: int, short: bool, threads: int = 256) -> Nest:
    """y = name(x) of so many floats; with `short`, as the parts of y."""
    at = f"{threads}*b+t"
    y = f"{name}(x[{at}])"
    outs, stores = "  out y: f32[{n}]\n", [f"y: y[{at}] = {y}"]
    if short:
        outs = "".join(f"  out {p}: bf16[{{n}}]\n" for p in PARTS)
        first = f"cast<bf16>({y})"
        left = f"({y} - cast<f32>({first}))"
        second = f"cast<bf16>({left})"
        third = f"cast<bf16>({left} - cast<f32>({second}))"
        stores = [f"{p}: {p}[{at}] = {v}" for p, v in zip(PARTS, (first, second, third))]
    text = f"nest k\n  in x: f32[{count}]\n{outs.format(n=count)}"
    text += f"  block.x b in {count // threads}:\n    thread.x t in {threads}:\n"
    return parse_nest(text + "".join(f"      {s}\n" for s in stores))
