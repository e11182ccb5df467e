"""The lists of passes that programs are compiled by, unless the user gives another one.

The list is what `passes=` of `tw.compile`, `tw.Options` and the command line edits. What follows it
takes a graph to something else, and is the same for every list: `FIXED`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.driver.program.packed_reads import ReadPacked
from tilewright.graph.align import SinkReshapes
from tilewright.graph.aligned_rows import AlignRows
from tilewright.graph.batch_norm import BatchNormFold
from tilewright.graph.channels import ChannelsLast
from tilewright.graph.conv_products import ConvProducts
from tilewright.graph.decompose import Decompose
from tilewright.graph.dots import DotProducts
from tilewright.graph.empty import EmptyValues
from tilewright.graph.fold import FoldConstants
from tilewright.graph.grid_key_blocks import GridKeyBlocks
from tilewright.graph.in_parts import InParts
from tilewright.graph.joined_sums import JoinSums
from tilewright.graph.key_blocks import KeyBlocks
from tilewright.graph.long_concats import LongConcats
from tilewright.graph.loops import HoistFromLoops
from tilewright.graph.merged_products import MergeProducts
from tilewright.graph.narrow_products import NarrowProducts
from tilewright.graph.narrow_sorts import NarrowSorts
from tilewright.graph.one_pass_norms import OnePassNorms
from tilewright.graph.online_softmax import OnlineSoftmax as OnlineSoftmax
from tilewright.graph.pack import PackOperands
from tilewright.graph.phases import Phases
from tilewright.graph.pixel_gradients import PixelGradients
from tilewright.graph.reciprocals import Reciprocals
from tilewright.graph.simplify import Simplify
from tilewright.graph.wide_numbers import WideNumbers
from tilewright.graph.winograd import Winograd
from tilewright.ir.passes import Pass, options
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.ir.text import attribute_text
from tilewright.superopt.corrected_pass import Corrected as Corrected
from tilewright.superopt.fewer_pass import FewerProducts
from tilewright.superopt.search_pass import Search as Search

CPU = Pipeline(
    (
        Simplify(),
        BatchNormFold(),
        FewerProducts(),
        KeyBlocks(),  # before: attention is one operator, not what it is written in terms of
        Phases(),
        NarrowSorts(),
        Decompose(),
        EmptyValues(),
        Simplify(),  # again: definitions leave much behind when they are put together
        JoinSums(),
        WideNumbers(),
        FoldConstants(),
        HoistFromLoops(),
        LongConcats(),
        InParts(),  # behind the hoisting of products, which would take them out of its loops
        ChannelsLast(),
        PixelGradients(),
        Reciprocals(),
        Winograd(),
        DotProducts(),
        PackOperands(),
        HoistFromLoops(products=False),  # again: what bodies pack of weights
    )
)
# What does not depend on a processor's vectors.
GPU = Pipeline(
    (
        Simplify(),
        BatchNormFold(),
        FewerProducts(),
        GridKeyBlocks(atomic=True),
        OnePassNorms(),
        Decompose(),
        EmptyValues(),
        Simplify(),
        JoinSums(),
        FoldConstants(),
        HoistFromLoops(),
        LongConcats(),
        ChannelsLast(),
        ConvProducts(),
        Reciprocals(),
        NarrowProducts(),
        SinkReshapes(),
        MergeProducts(),
        AlignRows(),
    )
)

_TRANSFORMING = (FewerProducts, Winograd)  # they compute other weights of those that are given
PRECISIONS = ("reassociate", "strict")
WIDTH = 14  # of the column of names
# What runs after the list, in this order, and what it does.
FIXED = {
    "split_weights": "what depends on weights only becomes a program of its own, which runs once",
    "fuse": "operators become clusters, one kernel each",
    "plan": "every stored value gets a place in memory",
}


def passes(
    target: Target | str | None = None,
    *,
    precision: str = "reassociate",
    own_weights: bool = False,
    deterministic: bool = False,
) -> Pipeline:
    """The default list for a target (None: this machine): to be printed, edited, and given back as
    `passes=`. A deterministic one has no sums in an order that differs from call to call."""
    if not isinstance(target, Target):
        target = targets.default() if target is None else targets.get(target)
    found = CPU if target.grid is None else GPU
    if precision == "strict":
        found = found.without(*found.rounding)
    if deterministic:
        found = with_atomics(found, False)
    if own_weights:
        # Transformed weights could not be restored.
        found = found.without(*(p.name for p in found if isinstance(p, _TRANSFORMING)))
        found = Pipeline((*found, ReadPacked()))
    return found


def with_atomics(listed: Pipeline, atomic: bool) -> Pipeline:
    """The list with or without sums in any order."""
    keys = (replace(p, atomic=atomic) if isinstance(p, GridKeyBlocks) else p for p in listed)
    return Pipeline(tuple(keys))


def described(listed: Pipeline) -> str:
    """The list, one pass with its description per line, then what follows it."""
    lines = [f"{p!s:<{WIDTH}}  {p.about()}{_options(p)}" for p in listed]
    lines += ["", "then, whatever the list:"]
    lines += [f"{name:<{WIDTH}}  {about}" for name, about in FIXED.items()]
    return "\n".join([*lines, "", f'passes="{listed}"'])


def _options(p: Pass) -> str:
    known = (f"{f.name}={attribute_text(getattr(p, f.name))}" for f in options(type(p)))
    shown = ", ".join(known)
    return f" {{{shown}}}" if shown else ""


def pipeline_of(given: Pipeline | str | Iterable[Pass]) -> Pipeline:
    """A list as users write it: as text, or as passes."""
    if isinstance(given, Pipeline):
        return given
    if isinstance(given, str):
        return Pipeline.parse(given)
    if not isinstance(given, Iterable):
        raise Invalid(
            f"passes={given!r} is no list of passes",
            hint='give tw.passes(), edited, or text such as "Simplify, Decompose, EmptyValues"',
        )
    return Pipeline(tuple(given))


def chosen_passes(
    given: Pipeline | str | Iterable[Pass] | None,
    target: Target,
    precision: str = "reassociate",
    own_weights: bool = False,
) -> Pipeline:
    """The list that a program is compiled by; a given one has to fit the other options."""
    if given is None:
        return passes(target, precision=precision, own_weights=own_weights)
    found = pipeline_of(given)
    if precision == "strict" and found.rounding:
        raise Invalid(
            f'precision="strict" changes no bit, and {", ".join(found.rounding)} may round '
            "differently",
            hint='leave them out; tw.passes(precision="strict") has none of the kind',
        )
    if own_weights and not any(isinstance(p, ReadPacked) for p in found):
        raise Invalid(
            "own_weights=True needs the pass ReadPacked, and the given list has none",
            hint="edit tw.passes(own_weights=True)",
        )
    return found
