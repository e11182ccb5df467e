"""`tl.math`: the elementary functions."""

from tilewright.lang.tile.library.math import *  # noqa: F403
