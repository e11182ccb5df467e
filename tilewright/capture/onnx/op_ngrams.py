"""Counting n-grams of integers."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np
from onnx import TensorProto

from tilewright import ops
from tilewright.capture.onnx.context import Context, static, translation
from tilewright.ir.node import Node
from tilewright.ir.types import f32, i64


@translation("TfIdfVectorizer")
def tf_idf(c: Context, x: Node) -> Node:
    """Each gram of the pool is compared with all windows of all skips."""
    pool = np.array(c.get("pool_int64s", []), np.int64)
    if not pool.size:
        c.refuse("strings have no native form")
    places, mode = c.get("ngram_indexes", []), c.get("mode", "TF")
    shortest, longest = c.get("min_gram_length", 1), c.get("max_gram_length", 1)
    starts = [*c.get("ngram_counts", []), len(pool)]
    rows = ops.cast(x if x.rank == 2 else ops.unsqueeze(x, 0), i64)
    n, length = static(rows.shape, "TfIdfVectorizer")
    counts: list[Node] = []
    for size, (low, high) in enumerate(pairwise(starts), 1):
        grams = pool[low:high].reshape(-1, size)
        total = ops.full((n, len(grams)), 0, i64)
        skips = range(c.get("max_skip_count", 0) + 1) if size > 1 else range(1)
        for step in (s + 1 for s in skips if shortest <= size <= longest):
            windows = length - (size - 1) * step
            if windows <= 0 or not len(grams):
                continue
            equal = []
            for k in range(size):
                part = ops.unsqueeze(ops.slice(rows, 1, k * step, k * step + windows), 2)
                equal.append(ops.eq(part, c.weight(grams[:, k].copy(), TensorProto.INT64)))
            found = reduce(ops.logical_and, equal)
            total = ops.add(total, ops.sum(ops.cast(found, i64), (1,)))
        counts.append(total)
    # In the order of the result; what no gram is mapped to takes the 0 at the end.
    everything = ops.cast(ops.concat([*counts, ops.full((n, 1), 0, i64)], 1), f32)
    if mode in ("IDF", "TFIDF"):
        weights = np.array([*c.get("weights", [1.0] * len(places)), 1.0], np.float32)
        if mode == "IDF":
            everything = ops.minimum(everything, ops.number(1, f32))
        everything = ops.mul(everything, c.weight(weights, TensorProto.FLOAT))
    order = np.full(max(places) + 1, len(places), np.int64)
    order[places] = np.arange(len(places))
    y = ops.take(everything, c.weight(order, TensorProto.INT64), 1, "within")
    return y if x.rank == 2 else ops.reshape(y, (len(order),))
