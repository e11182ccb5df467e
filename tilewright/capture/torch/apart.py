"""Operators of a joint graph taken apart where a gradient needs only a part of what they make.

`partition.py` decides about values one by one, so what is small and worth keeping has to be a value
of its own.
"""

from __future__ import annotations

import operator

import torch
import torch.fx

_WIDE = (torch.float32, torch.float64)
_DROPOUT = torch.ops.aten.native_dropout.default
_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
_LOG_SOFTMAX = torch.ops.aten._log_softmax.default


def masks_apart(graph: torch.fx.Graph) -> None:
    """What dropout leaves is computed from its mask, apart from drawing that: it can be computed
    again from the mask, which has a byte for an element."""
    for n in list(graph.nodes):
        if n.target is not _DROPOUT or len(n.args) != 3:
            continue
        x, p, train = n.args
        items = {u.args[1]: u for u in n.users if u.target is operator.getitem}
        value = items[0].meta.get("val") if set(items) == {0, 1} else None
        is_wide = isinstance(value, torch.Tensor) and value.dtype in _WIDE
        if not is_wide or not train or not isinstance(p, float) or not 0 < p < 1:
            continue
        left, mask = items[0], items[1]
        n.append(mask)
        with graph.inserting_after(mask):
            scaled = graph.call_function(torch.ops.aten.mul.Tensor, (x, 1 / (1 - p)))
        with graph.inserting_after(scaled):
            new = graph.call_function(torch.ops.aten.where.ScalarOther, (mask, scaled, 0))
        for y in (scaled, new):
            y.meta = dict(left.meta)
        left.replace_all_uses_with(new)
        graph.erase_node(left)


def log_softmax_apart(graph: torch.fx.Graph) -> None:
    """The maximum and the logarithm of the sum of each row are values of their own: with these two
    numbers of a row, and what it was made of, its elements are a map."""
    aten = torch.ops.aten
    for n in list(graph.nodes):
        if n.target is not _LOG_SOFTMAX or len(n.args) != 3 or n.args[2]:
            continue
        x, dim, _ = n.args
        value = n.meta.get("val")
        given = x.meta.get("val") if isinstance(x, torch.fx.Node) else None
        if not isinstance(value, torch.Tensor) or not isinstance(given, torch.Tensor):
            continue
        if value.dtype not in _WIDE or given.dtype is not value.dtype or not value.dim():
            continue
        if _may_be_nothing(value.shape[dim]):  # which has no maximum
            continue
        with graph.inserting_before(n):
            most = graph.call_function(aten.amax.default, (x, [dim], True))
            less = graph.call_function(aten.sub.Tensor, (x, most))
            terms = graph.call_function(aten.exp.default, (less,))
            total = graph.call_function(aten.sum.dim_IntList, (terms, [dim], True))
            log = graph.call_function(aten.log.default, (total,))
            new = graph.call_function(aten.sub.Tensor, (less, log))
        # Each has a value of its own: results of one memory count as one.
        for y in (most, total, log):
            y.meta = dict(n.meta) | {"val": value.sum(dim, keepdim=True)}
        for y in (less, terms, new):
            y.meta = dict(n.meta) | {"val": torch.empty_like(value)}
        n.replace_all_uses_with(new)
        graph.erase_node(n)


def batch_norms_apart(graph: torch.fx.Graph) -> None:
    """What a batch norm gives is a map of its operand and of two numbers of each channel, all of
    which its gradient reads: where another gradient reads the result (that of relu6, say), it can
    be computed again from these."""
    aten = torch.ops.aten
    for n in list(graph.nodes):
        if n.target is not _BATCH_NORM or len(n.args) != 8 or n.args[5] is not True:
            continue
        items = {u.args[1]: u for u in n.users if u.target is operator.getitem}
        if not {0, 1, 2} <= set(items):
            continue
        x, weight, bias = n.args[:3]
        out, mean, scale = (items[k] for k in range(3))
        value, each = out.meta["val"], mean.meta["val"]
        steps = [(aten.sub, mean), (aten.mul, scale), (aten.mul, weight), (aten.add, bias)]
        steps = [(op, of) for op, of in steps if of is not None]
        dtypes = {y.meta["val"].dtype for y in (x, out, *(of for _, of in steps))}
        if len(dtypes) > 1 or value.dtype not in _WIDE or not isinstance(each.shape[0], int):
            continue
        column = [each.shape[0]] + [1] * (value.dim() - 2)
        y = x
        for of in (scale, mean, out):
            n.append(of)
        with graph.inserting_before(scale.next):
            for op, of in steps:
                seen = graph.call_function(aten.view.default, (of, column))
                seen.meta = dict(n.meta) | {"val": each.view(column)}
                y = graph.call_function(op.Tensor, (y, seen))
                y.meta = dict(n.meta) | {"val": torch.empty_like(value)}
        out.replace_all_uses_with(y)
        graph.erase_node(out)


def _may_be_nothing(size: int | torch.SymInt) -> bool:
    if isinstance(size, int):
        return size == 0
    env = size.node.shape_env
    return env is None or not env.bound_sympy(size.node.expr).lower > 0
