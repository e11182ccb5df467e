"""`tl.standard`: the library that is written in the language itself."""

from tilewright.lang.tile.library.standard import *  # noqa: F403
