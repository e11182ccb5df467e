"""Ensembles of trees: every row walks down all trees at once, a level in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.capture.onnx.context import Context, translation
from tilewright.capture.onnx.elements import ELEMENT_OF
from tilewright.ir.node import Node
from tilewright.ir.types import f32, i64

step = partial(translation, domain="ai.onnx.ml")

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_COMPARE = {
    "LEQ": ops.le,
    "LT": ops.lt,
    "GTE": ops.ge,
    "GT": ops.gt,
    "EQ": ops.eq,
    "NEQ": ops.ne,
}
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass
class Forest:
    """Nodes of all trees, leaves too: a leaf's branches lead to itself. `votes` has a row for each
    node and a column for each target; NaN where a leaf has no vote."""

    roots: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    true: np.ndarray
    false: np.ndarray
    missing: np.ndarray  # is the true branch taken where the feature is NaN?
    members: Sequence[np.ndarray]  # sets of nodes that test membership, in their order
    votes: np.ndarray

    def depth(self) -> int:
        """Steps until every walk has reached a leaf."""
        reached, count = np.unique(self.roots), 0
        while True:
            below = np.unique(np.concatenate([self.true[reached], self.false[reached]]))
            if np.array_equal(below, reached):
                return count
            reached, count = below, count + 1
            if count > len(self.true):
                raise Invalid("a tree has a cycle")

    def checked(self, features: Any) -> Forest:
        """Itself, if all its indices are in range."""
        size = len(self.true)
        for what, found, most in (
            ("a branch", np.concatenate([self.true, self.false, self.roots]), size),
            ("a feature", self.feature, features if isinstance(features, int) else None),
        ):
            if len(found) and (found.min() < 0 or (most is not None and found.max() >= most)):
                raise Invalid(f"{what} of a tree is out of range")
        return self


def _walk(c: Context, forest: Forest, x: Node) -> Node:
    """The node at which each row ends in each tree."""
    rows, trees = x.shape[0], len(forest.roots)
    whole, real = TensorProto.INT64, ELEMENT_OF[x.dtype]
    place = ops.expand(c.weight(forest.roots.reshape(1, trees), whole), (rows, trees))

    def of(array: np.ndarray, element: int) -> Node:
        return ops.index(c.weight(array, element), [place], [0], "within")

    table = np.full((len(forest.true), max(map(len, forest.members), default=0)), np.nan)
    for k, members in zip(np.flatnonzero(forest.mode == MODES.index("MEMBER")), forest.members):
        table[k, : len(members)] = members
    used = [MODES[m] for m in np.unique(forest.mode[forest.true != forest.false])]
    for _ in range(forest.depth()):
        value = ops.gather(x, of(forest.feature, whole), 1, "within")
        split = of(forest.split, real)
        taken: Node | None = None
        for mode in used:
            if mode == "MEMBER":
                other = ops.reshape(value, (rows, trees, 1))
                hit = ops.any(ops.eq(other, of(table, real)), (2,), False)
            else:
                hit = _COMPARE[mode](value, split)
            same = ops.eq(of(forest.mode, whole), ops.number(MODES.index(mode), i64))
            taken = hit if taken is None else ops.where(same, hit, taken)
        if taken is None:
            break
        if forest.missing.any():
            tracks = ops.ne(of(forest.missing, whole), ops.number(0, i64))
            taken = ops.logical_or(taken, ops.logical_and(ops.isnan(value), tracks))
        place = ops.where(taken, of(forest.true, whole), of(forest.false, whole))
    return place


def _scores(c: Context, forest: Forest, x: Node, how: str) -> Node:
    """[rows, targets]: the votes of the leaves, of all trees together."""
    voted = ~np.isnan(forest.votes)
    neutral = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
    table = np.where(voted, forest.votes, neutral)
    place = _walk(c, forest, x)
    votes = ops.index(c.weight(table, ELEMENT_OF[x.dtype]), [place], [0], "within")
    if how in ("MIN", "MAX"):
        found = (ops.amin if how == "MIN" else ops.amax)(votes, (1,), False)
        return ops.where(ops.isinf(found), ops.number(0, x.dtype), found)
    total = ops.sum(votes, (1,), False)
    return total if how == "SUM" else ops.div(total, ops.number(len(forest.roots), x.dtype))


def _transformed(c: Context, x: Node, how: str) -> Node:
    if how == "NONE":
        return x
    if how == "LOGISTIC":
        return ops.sigmoid(x)
    if how == "SOFTMAX":
        return ops.softmax(x, 1)
    if how == "PROBIT":
        two, one = ops.number(2, x.dtype), ops.number(1, x.dtype)
        return ops.mul(ops.erfinv(ops.sub(ops.mul(x, two), one)), ops.number(2**0.5, x.dtype))
    c.refuse(f"post_transform={how!r}")


def _data(x: Node) -> Node:
    return x if x.dtype.is_float else ops.cast(x, f32)


@step("TreeEnsemble", since=5)
def tree_ensemble(c: Context, x: Node) -> Node:
    def array(name: str) -> np.ndarray:
        found = c.attributes.get(name, [])
        held = numpy_helper.to_array(found) if isinstance(found, TensorProto) else np.array(found)
        return held.astype(np.float64 if held.dtype.kind == "f" else np.int64)

    inner, leaves = len(array("nodes_featureids")), len(array("leaf_targetids"))

    def both(of_nodes: np.ndarray) -> np.ndarray:
        return np.concatenate([of_nodes, np.zeros(leaves, of_nodes.dtype)])

    def branch(kind: str) -> np.ndarray:
        to = array(f"nodes_{kind}nodeids") + inner * array(f"nodes_{kind}leafs")
        return np.concatenate([to, inner + np.arange(leaves)])

    votes = np.full((inner + leaves, c.get("n_targets", 1)), np.nan)
    votes[inner + np.arange(leaves), array("leaf_targetids")] = array("leaf_weights")
    missing = array("nodes_missing_value_tracks_true").astype(np.int64)
    forest = Forest(
        array("tree_roots"),
        both(array("nodes_featureids")),
        both(array("nodes_splits")),
        both(array("nodes_modes")),
        branch("true"),
        branch("false"),
        both(missing if len(missing) else np.zeros(inner, np.int64)),
        _sets(array("membership_values")),
        votes,
    ).checked(x.shape[1])
    found = _scores(c, forest, _data(x), AGGREGATES[c.get("aggregate_function", 1)])
    return ops.cast(_transformed(c, found, TRANSFORMS[c.get("post_transform", 0)]), x.dtype)


def _sets(values: np.ndarray) -> list[np.ndarray]:
    """Sets that NaN separates."""
    ends = np.flatnonzero(np.isnan(values)) if len(values) else np.zeros(0, np.int64)
    parts = np.split(values, ends)
    return [p[~np.isnan(p)] for p in parts]


def _older(c: Context, prefix: str, targets: int, x: Node) -> Forest:
    """Trees whose nodes and leaves are one list, by their numbers within a tree."""

    def array(name: str) -> np.ndarray:
        wide = c.attributes.get(f"{name}_as_tensor")
        return numpy_helper.to_array(wide) if wide is not None else np.array(c.get(name, []))

    trees, numbers = array("nodes_treeids"), array("nodes_nodeids")
    at = {(int(t), int(n)): k for k, (t, n) in enumerate(zip(trees, numbers))}
    own = np.arange(len(trees))
    modes = [str(m).removeprefix("BRANCH_") for m in c.get("nodes_modes", [])]
    leaf = np.array([m == "LEAF" for m in modes])

    def branch(name: str) -> np.ndarray:
        to = zip(trees, array(name), leaf, own)
        return np.array([k if is_leaf else at[int(t), int(n)] for t, n, is_leaf, k in to])

    votes = np.full((len(own), targets), np.nan)
    names = ("treeids", "nodeids", "ids", "weights")
    for t, n, target, w in zip(*(array(f"{prefix}_{name}") for name in names)):
        place = at[int(t), int(n)], int(target)
        votes[place] = w if np.isnan(votes[place]) else votes[place] + w
    missing = array("nodes_missing_value_tracks_true").astype(np.int64)
    _, first = np.unique(trees, return_index=True)
    return Forest(
        np.array([at[int(trees[k]), int(numbers[k])] for k in first], np.int64),
        np.where(leaf, 0, array("nodes_featureids")).astype(np.int64),
        array("nodes_values").astype(np.float64),
        np.array([0 if m == "LEAF" else MODES.index(m) for m in modes], np.int64),
        branch("nodes_truenodeids"),
        branch("nodes_falsenodeids"),
        missing if len(missing) else np.zeros(len(own), np.int64),
        (),
        votes,
    ).checked(x.shape[1])


def _based(c: Context, found: Node) -> Node:
    """With what is added to every row."""
    wide = c.attributes.get("base_values_as_tensor")
    base = numpy_helper.to_array(wide) if wide is not None else np.array(c.get("base_values", []))
    if not base.size:
        return found
    return ops.add(found, c.weight(base.reshape(1, -1), ELEMENT_OF[found.dtype]))


@step("TreeEnsembleRegressor")
def tree_ensemble_regressor(c: Context, x: Node) -> Node:
    x = _data(x)
    forest = _older(c, "target", c.get("n_targets", 1), x)
    found = _based(c, _scores(c, forest, x, c.get("aggregate_function", "SUM")))
    return ops.cast(_transformed(c, found, c.get("post_transform", "NONE")), f32)


@step("TreeEnsembleClassifier")
def tree_ensemble_classifier(c: Context, x: Node) -> tuple[Node, Node]:
    labels = c.attributes.get("classlabels_int64s")
    if not labels:
        c.refuse("labels that are strings have no native form")
    if len(set(c.get("class_ids", []))) != len(labels):
        c.refuse("leaves that vote for one of two classes only")
    x = _data(x)
    forest = _older(c, "class", len(labels), x)
    found = _based(c, _scores(c, forest, x, "SUM"))
    best = ops.argmax(found, 1, False)
    names = c.weight(np.array(labels, np.int64), TensorProto.INT64)
    chosen = ops.index(names, [best], [0], "within")
    return chosen, ops.cast(_transformed(c, found, c.get("post_transform", "NONE")), f32)
