"""`tl.standard`: the library that is written in the language itself."""

from tilewright.lang.tile.library.standard import *  # noqa: F403
from tilewright.lang.tile.library.standard import _log2, sort_impl  # noqa: F401  (for sorting)
