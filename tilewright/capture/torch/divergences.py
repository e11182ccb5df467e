"""Divergences of two distributions. Torch looks in a table of all pairs of kinds, in a way that
Dynamo does not follow, until it has been asked for a pair once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.distributions import Distribution, kl

from tilewright.capture.torch.substitutes import substitute


def _look_up(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Ask torch for the pair, so that Dynamo finds it among those that were: and for all that it
    lists, since Dynamo looks at the table once. Nothing takes the function's place."""
    both = dict(zip(("p", "q"), operands, strict=False)) | dict(named)
    with suppress(KeyError, NotImplementedError):  # unknown to Dynamo, or not of two operands
        pair = both["p"].python_type(), both["q"].python_type()
        if pair not in kl._KL_MEMOIZE and all(issubclass(t, Distribution) for t in pair):
            for each in (*kl._KL_REGISTRY, pair):
                kl._KL_MEMOIZE[each] = kl._dispatch_kl(*each)
    return False


substitute(kl.kl_divergence, kl.kl_divergence, _look_up)
