"""How far scalar functions of a GPU are from exact, measured over every float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.gpu.functions import LEAST, OF_TERMS, PARTS, SHORT, function_nest, term_nest
from tilewright.driver.program.grid_run import GridKernel, target_of
from tilewright.llvm.grid_math import EXACT as KEPT
from tilewright.llvm.grid_math import TERMS
from tilewright.llvm.vmath import ERROR_BOUNDS
from tilewright.runtime.cuda.device import device

Found = dict[str, Any]

EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erfc": torch.erfc,
}


def function_errors() -> Found:
    """The largest errors in units in the last place, over every float32 from 2^-20 to 128."""
    found: Found = {}
    over: list[str] = []
    for name in EXACT:
        for short in (False, True):
            worst, at = _error(name, short)
            promised = SHORT[name] if short and name not in KEPT else ERROR_BOUNDS[name]
            found[f"{name}{' of 16 bits' if short else ''}"] = worst
            if not worst <= promised:
                over.append(f"{name}: {worst:.2f} at {at!r}, {promised} are promised")
    for name in TERMS.keys() - {"exp2"}:  # 2^x is for terms of a softmax
        worst, at = _error(name, False, term=True)
        found[f"{name} of a term"] = worst
        if not worst <= OF_TERMS:
            over.append(f"{name} of a term: {worst:.2f} at {at!r}, {OF_TERMS} are promised")
    found["facts"] = ", ".join(f"{k} {v:.2f} ulp" for k, v in found.items())
    found["facts"] += "; the instruction for 2^x at multiples of " + _ex2_at_points()
    assert not over, f"{'; '.join(over)} (all: {found['facts']})"
    return found


def _ex2_at_points() -> str:
    """How good the instruction is at few points, from -1/2 to 1/2: for better formulas."""
    on, said = device(0), []
    for k in (2, 3, 4, 5, 6, 7, 8, 10, 12):
        n = 2 ** (k - 1)
        x = torch.arange(-n, n, device="cuda").float() / 2**k
        x = x.repeat(-(-256 // x.numel()))
        kernel = GridKernel(function_nest("exp2", x.numel(), True), target_of(on), on)
        outs = {p: torch.empty(x.numel(), device="cuda", dtype=torch.bfloat16) for p in PARTS}
        kernel({"x": x, **outs}, {}, torch.cuda.current_stream().cuda_stream)
        got, want = sum(outs[p].double() for p in PARTS), torch.exp2(x.double())
        near = want.float()
        unit = torch.nextafter(near, torch.full_like(near, torch.inf)) - near
        said.append(f"2^-{k} {float(((got - want).abs() / unit.double()).max()):.2f}")
    return ", ".join(said)


def _error(name: str, short: bool, term: bool = False) -> tuple[float, float]:
    """The largest error of a function, and where it is."""
    on, count = device(0), 1 << 26
    nest = term_nest(name, count) if term else function_nest(name, count, short)
    k = GridKernel(nest, target_of(on), on)
    parts = PARTS if short else ("y",)
    kind = torch.bfloat16 if short else torch.float32
    outs = {p: torch.empty(count, device="cuda", dtype=kind) for p in parts}
    worst, at = 0.0, 0.0
    # All bits, of both signs, 2^26 at a time.
    for start in range(107 << 23, 134 << 23, count):
        for sign in (0, 1 << 31):
            bits = torch.arange(start + sign, start + sign + count, device="cuda")
            x = bits.to(torch.int32).view(torch.float32)
            k({"x": x, **outs}, {}, torch.cuda.current_stream().cuda_stream)
            got = sum(outs[p].double() for p in parts)
            want = EXACT[name](x.double())
            near = want.float()
            fine = torch.isfinite(near) & ((near.abs() > LEAST[name]) if short else True)
            unit = torch.nextafter(near.abs(), torch.full_like(near, torch.inf)) - near.abs()
            error = torch.where(fine, (got - want).abs() / unit.double(), 0.0)
            most = float(error.max())
            if not most <= worst:
                worst, at = most, float(x[int(error.argmax())])
            endless = ~torch.isfinite(near)
            first = outs[parts[0]].float()
            same = torch.allclose(first[endless], near[endless], equal_nan=True)
            assert same, f"{name} overflows elsewhere"
    return worst, at
