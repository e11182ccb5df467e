"""`tl.core`: the functions and types of the language."""

from tilewright.lang.tile.core import *  # noqa: F403
