"""The tile language, imported as `tl`: Triton's names, on any CPU.

import tilewright as tw
import tilewright.language as tl

@tw.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)
"""

from typing import TYPE_CHECKING

from tilewright.lang.tile.language import core as _core
from tilewright.lang.tile.language.core import *  # noqa: F403
from tilewright.lang.tile.language.type_names import str_to_ty
from tilewright.lang.tile.library import random as _random
from tilewright.lang.tile.library import standard as _standard
from tilewright.lang.tile.library.random import *  # noqa: F403
from tilewright.lang.tile.library.standard import *  # noqa: F403
from tilewright.language import core, extra, math, random, standard, target_info

if TYPE_CHECKING:
    from tilewright.language.checked import constexpr as constexpr

__all__ = ["core", "extra", "math", "random", "standard", "str_to_ty", "target_info"]
__all__ += _core.__all__
__all__ += _random.__all__
__all__ += _standard.__all__
