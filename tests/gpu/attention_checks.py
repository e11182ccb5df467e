"""Attention on a GPU: right, and timed beside torch's own kernels (cuDNN's, flash attention)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright as tw
from tests.gpu.model_checks import judged
from tests.gpu.timing import medians
from tests.graph.build import arg, graph
from tilewright import ops
from tilewright.driver.program import default_passes
from tilewright.driver.program.grid_run import GridProgram
from tilewright.graph import grid_key_blocks
from tilewright.ir.node import Graph
from tilewright.ir.types import bf16
from tilewright.kernel.defaults import (
    grid_chain_ways,
    grid_chains,
)
from tilewright.kernel.defaults.grid_chain_ways import PLAIN, Way

Found = dict[str, Any]
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class Case:
    batch: int
    heads: int
    rows: int
    width: int
    keys: int = 0  # 0: as many as rows
    shared: int = 0  # heads of keys; 0: as many as of queries
    causal: bool = False

    @property
    def title(self) -> str:
        words = [f"attention {self.batch}x{self.heads}x{self.rows}x{self.width}"]
        words += [f"keys {self.keys}"] if self.keys else []
        words += [f"shared {self.shared}"] if self.shared else []
        words += ["causal"] if self.causal else []
        return " ".join(words)

    def inputs(self) -> list[torch.Tensor]:
        q = (self.batch, self.heads, self.rows, self.width)
        k = (self.batch, self.shared or self.heads, self.keys or self.rows, self.width)
        return [torch.randn(s, device="cuda").bfloat16() for s in (q, k, k)]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        shared = bool(self.shared)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=shared)

    def graph(self) -> Graph:
        q, k = ((self.batch, n, self.rows, self.width) for n in (self.heads, self.shared))
        k = k if self.shared else q
        q, k, v = (arg(x, *shape, dtype=bf16) for x, shape in zip("qkv", (q, k, k), strict=True))
        return graph(ops.attention(q, k, v, causal=self.causal, scale=self.width**-0.5))

    @property
    def work(self) -> float:
        """Operations; of causal attention, those that are needed."""
        keys = self.keys or self.rows
        seen = (keys + 1) / 2 if self.causal else keys
        return 4 * self.batch * self.heads * self.rows * seen * self.width


# What torch's kernels are compared with: short and long heads, causal, shared heads of keys, sizes
# that no tile divides, those of models, few queries.
CASES = (
    Case(8, 16, 2048, 64),
    Case(8, 16, 2048, 64, causal=True),
    Case(4, 16, 4096, 128),
    Case(4, 16, 4096, 128, causal=True),
    Case(4, 32, 2048, 128, shared=8, causal=True),
    Case(8, 16, 2000, 64),
    Case(4, 16, 1999, 128, causal=True),
    Case(8, 16, 1024, 96),
    Case(32, 12, 128, 64),
    Case(1, 12, 128, 64, causal=True),
    Case(8, 12, 197, 64),
    Case(1, 32, 512, 64, shared=8, causal=True),
    Case(8, 32, 1, 128, keys=8192, shared=8),
)


def _peers(c: Case) -> dict[str, Callable[..., torch.Tensor]]:
    """torch's kernels that take the case."""
    out: dict[str, Callable[..., torch.Tensor]] = {}
    small = c.inputs()
    for name, backend in BACKENDS.items():

        def call(*x: torch.Tensor, backend: SDPBackend = backend) -> torch.Tensor:
            with sdpa_kernel(backend):
                return c(*x)

        try:
            call(*small)
        except RuntimeError:  # which backends take which shapes is torch's own matter
            continue
        out[name] = call
    return out


def attention(c: Case) -> Found:
    """Right by float64 (float32 where that takes too much memory), then timed beside torch."""
    fast = tw.compile(c)
    sets = [c.inputs() for _ in range(3)]
    large = c.batch * c.heads * c.rows * (c.keys or c.rows) > 2**28
    exact = c(*(x.float() if large else x.double() for x in sets[0]))
    got = fast(*sets[0])
    error = judged(got, exact, c(*sets[0]))
    assert torch.equal(got, fast(*sets[0])), "two runs differ"
    del exact
    contenders: dict[str, list[Callable[[], object]]] = {
        "ours": [lambda x=x: fast(*x) for x in sets]
    }
    for name, peer in _peers(c).items():
        contenders[name] = [lambda x=x, peer=peer: peer(*x) for x in sets]
    t = medians(contenders, 20)
    best = min((s for name, s in t.items() if name != "ours"), default=t["ours"])
    kernels = sum(k.calls for u in fast.units for p in u.programs for k in p.kernels)
    beside = ", ".join(f"{name} {s * 1e6:.1f} us" for name, s in t.items())
    return {
        "us": t["ours"] * 1e6,
        "eager": best / t["ours"],
        "error": error,
        "kernels": kernels,
        "facts": f"{kernels} kernels, {c.work / t['ours'] * 1e-12:.0f} TFLOP/s; {beside}",
    }


@dataclass(frozen=True)
class Variant:
    """How many keys a block has, how they come and what goes on meanwhile, and how far they are
    ahead where no producer brings them."""

    keys: int = 0  # 0: what suits
    way: Way = PLAIN
    ahead: int = 1
    atomic: bool = False  # all gradients by one kernel

    def program(self, made: Graph) -> GridProgram:
        """Scheduled anew, whatever is cached."""
        places = (
            (grid_key_blocks, "FIXED", self.keys),
            (grid_chain_ways, "WAY", self.way),
            (grid_chains, "AHEAD", self.ahead),
            (default_passes, "GPU", default_passes.with_atomics(default_passes.GPU, self.atomic)),
        )
        before = [getattr(module, name) for module, name, _ in places]
        try:
            for module, name, x in places:
                setattr(module, name, x)
            return GridProgram(made)
        finally:
            for (module, name, _), x in zip(places, before, strict=True):
                setattr(module, name, x)

    def __str__(self) -> str:
        own = ((f.name, getattr(self.way, f.name), f.default) for f in fields(self.way))
        words = [name if x is True else f"{name} {x}" for name, x, usual in own if x != usual]
        keys = f"{self.keys} keys" if self.keys else ""
        ahead = f"{self.ahead} ahead" if self.ahead > 1 else ""
        atomic = "atomic" if self.atomic else ""
        return " ".join(filter(None, (keys, ahead, atomic, *words))) or "plain"


# By the width of heads, the best that is known first. A slack of 2: the second product goes on
# during the next softmax.
VARIANTS = {
    64: (
        *(Variant(128), Variant(64), Variant(64, Way(slack=2))),
        *(Variant(128, Way(slack=2)), Variant(128, Way(slack=2, groups=2))),
    ),
    128: (
        *(Variant(128, Way(3, 2)), Variant(128, Way(3, 2, walks=True))),
        *(Variant(128, Way(3, walks=True)), Variant(64)),
    ),
}


def variant(c: Case, v: Variant) -> Found:
    """The same by another schedule: right, with the same bits every time, and timed."""
    x = c.inputs()
    made, want = v.program(c.graph()), c(*x)
    got = made(*x)[0]
    torch.testing.assert_close(got, want, atol=0.02, rtol=0.02)
    assert torch.equal(got, made(*x)[0]), "two runs differ"
    calls: dict[str, list[Callable[[], object]]] = {"ours": [lambda: made(*x)]}
    for name, peer in _peers(c).items():
        calls[name] = [lambda f=peer: f(*x)]
    t = medians(calls, 12)
    best = min((s for name, s in t.items() if name != "ours"), default=t["ours"])
    beside = ", ".join(f"{name} {s * 1e6:.1f} us" for name, s in t.items())
    return {"us": t["ours"] * 1e6, "eager": best / t["ours"], "facts": beside}


def attention_checks() -> Iterator[tuple[str, Callable[[], Found]]]:
    for c in CASES:
        yield c.title, lambda c=c: attention(c)
    for c in CASES[:7]:
        for v in VARIANTS[c.width]:
            yield f"variant {v} of {c.title}", lambda c=c, v=v: variant(c, v)
