"""`tl.math`: the elementary functions."""

from tilewright.lang.tile.math import *  # noqa: F403
