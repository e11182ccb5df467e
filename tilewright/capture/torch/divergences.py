"""Divergences of two distributions. Torch looks in a table of all pairs of kinds, in a way that
Dynamo does not follow, until it has been asked for a pair once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.distributions import Distribution, kl

from tilewright.capture.torch.substitutes import substitute


def _look_up(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Ask torch for the pair, so that Dynamo finds it among those that were: and for all that it
    lists, since Dynamo looks at the table once. Nothing takes the function's place."""
    both = dict(zip(("p", "q"), operands, strict=False)) | dict(named)
    p, q = (_kind(both.get(name)) for name in ("p", "q"))
    if p is not None and q is not None and (p, q) not in kl._KL_MEMOIZE:
        for pair in (*kl._KL_REGISTRY, (p, q)):
            kl._KL_MEMOIZE[pair] = kl._dispatch_kl(*pair)
    return False


def _kind(x: Any) -> type[Distribution] | None:
    """Which distribution a variable of Dynamo stands for; None where it is none, or not known:
    torch's own function, which is traced then, says what is wrong."""
    try:
        found = None if x is None else x.python_type()
    except NotImplementedError:  # Dynamo's way to say that it does not know
        return None
    return found if found is not None and issubclass(found, Distribution) else None


substitute(kl.kl_divergence, kl.kl_divergence, _look_up)
