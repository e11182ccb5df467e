"""`tl.random`: random numbers that are counted by offsets."""

from tilewright.lang.tile.library.random import *  # noqa: F403
