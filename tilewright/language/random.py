"""`tl.random`: counter-based random numbers: one per seed and offset."""

from tilewright.lang.tile.library.random import *  # noqa: F403
from tilewright.lang.tile.library.random import N_ROUNDS_DEFAULT  # noqa: F401
