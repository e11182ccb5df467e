"""What a median of a few noisy numbers is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

CONFIDENCE = 0.95


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Holds the true median with at least 95 %, whatever the distribution.

    A sample lies below the median with one half, so the count below is binomial, and order
    statistics that are equally far from both ends enclose it. Under six samples even the outermost
    two do not reach 95 %; they are returned all the same.
    """
    ordered, n = sorted(values), len(values)
    outside, low = 0.0, 0
    while low < n // 2:
        outside += 2 * math.comb(n, low) / 2**n
        if outside > 1 - CONFIDENCE:
            break
        low += 1
    low = max(low - 1, 0)
    return ordered[low], ordered[n - 1 - low]
