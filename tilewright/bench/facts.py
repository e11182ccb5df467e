"""What a case needs at least, and what its results should be."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from tilewright.bench.example import Example
from tilewright.bench.memory import weight_bytes
from tilewright.bench.oracle import disagreements, in_double

_aten = torch.ops.aten


@dataclass(frozen=True)
class Facts:
    """Floating-point operations of products and convolutions, and bytes that have to move."""

    flops: int
    read: int  # inputs, and weights as far as they are used
    written: int
    weights: int  # all of them


def facts_of(example: Example, expected: Any, flops: int, gathered: dict[str, int]) -> Facts:
    inputs = sum(x.nbytes for x in example.inputs)
    read = inputs + _weights_read(example.module, gathered)
    written = sum(x.nbytes for x in pytree.tree_leaves(expected) if isinstance(x, torch.Tensor))
    return Facts(flops, read, written, weight_bytes(example.module))


def judge(example: Example, file: Path) -> dict[str, Any]:
    """Run eager and float64, leave both results in `file`, and give the facts."""
    gathered: dict[str, int] = {}
    hooks = [
        part.register_forward_hook(_counted(gathered, name))
        for name, part in example.module.named_modules()
        if isinstance(part, nn.Embedding)
    ]
    # Torch counts for accelerators' attention only, not where heads share keys, and no integers.
    attentions = ("flash_attention_for_cpu", "flash_attention", "efficient_attention")
    more: Any = {
        getattr(_aten, f"_scaled_dot_product_{name}"): _attention_flops
        for name in (*attentions, "cudnn_attention")
    }
    more[_aten._int_mm] = _product_flops
    with FlopCounterMode(display=False, custom_mapping=more) as counter:
        eager = example.module(*example.inputs)
    for hook in hooks:
        hook.remove()
    reference = in_double(copy.deepcopy(example.module).double(), *example.inputs)
    torch.save({"eager": _on_cpu(eager), "exact": _on_cpu(reference)}, file)
    return asdict(facts_of(example, eager, counter.get_total_flops(), gathered))


def verdict(results: Any, file: Path) -> tuple[str | None, float]:
    """What is wrong by the oracle, if anything, and the error relative to the largest value."""
    saved = torch.load(file)
    ours = _on_cpu(results)
    wrong = disagreements(ours, saved["eager"], saved["exact"])
    if len(ours) != len(saved["exact"]):
        return "; ".join(wrong), math.inf
    worst = [_relative_error(x, y) for x, y in zip(ours, saved["exact"])]
    return "; ".join(wrong) or None, max(worst, default=0.0)


def _on_cpu(results: Any) -> list[Any]:
    leaves = pytree.tree_leaves(results)
    return [x.cpu() if isinstance(x, torch.Tensor) else x for x in leaves]


def _relative_error(ours: Any, exact: Any) -> float:
    if not (isinstance(ours, torch.Tensor) and isinstance(exact, torch.Tensor)):
        return 0.0
    if ours.shape != exact.shape:
        return math.inf
    if exact.numel() == 0:
        return 0.0
    x, y = ours.detach().double(), exact.detach().double()
    same = x.isfinite() == y.isfinite()
    if not bool(same.all()):
        return math.inf
    x, y = (torch.where(y.isfinite(), t, 0) for t in (x, y))
    return float((x - y).abs().max()) / max(float(y.abs().max()), 1e-300)


def _weights_read(module: nn.Module, gathered: dict[str, int]) -> int:
    """Of a table of embeddings only the rows that are looked up, unless it serves for more."""
    tables = {name: part for name, part in module.named_modules() if isinstance(part, nn.Embedding)}
    known = {part.weight.untyped_storage()._cdata for part in tables.values()}
    shared = {
        p.untyped_storage()._cdata
        for part in module.modules()
        if not isinstance(part, nn.Embedding)
        for p in part.parameters(recurse=False)
    }
    only_looked_up = {
        part.weight.untyped_storage()._cdata: part.weight.untyped_storage().nbytes()
        for part in tables.values()
        if part.weight.untyped_storage()._cdata in known - shared
    }
    return weight_bytes(module) - sum(only_looked_up.values()) + sum(gathered.values())


def _counted(gathered: dict[str, int], name: str) -> Any:
    def hook(_module: nn.Module, _inputs: Any, result: torch.Tensor) -> None:
        gathered[name] = gathered.get(name, 0) + result.nbytes

    return hook


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    *batch, rows, width = q
    columns = k[-2]
    return 2 * math.prod(batch) * rows * columns * (width + v[-1])


def _product_flops(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return 2 * a[0] * a[1] * b[1]
