"""`tl.core`: the functions and types of the language."""

from tilewright.lang.tile.language.core import *  # noqa: F403
