"""`tl.extra.cuda`: libdevice. Queries about the graphics card itself are refused."""

from tilewright.lang.tile.language.refusals import refused
from tilewright.lang.tile.language.tensor import builtin
from tilewright.language.extra import libdevice

_WHY = "a program here is a CPU's thread, without warps, multiprocessors or their clock"
_HINT = "guard it with tl.target_info.is_cuda()"

globaltimer = refused("tl.extra.cuda.globaltimer", _WHY, _HINT)
num_threads = refused("tl.extra.cuda.num_threads", _WHY, _HINT)
num_warps = refused("tl.extra.cuda.num_warps", _WHY, _HINT)
smid = refused("tl.extra.cuda.smid", _WHY, _HINT)


@builtin
def gdc_wait() -> None:
    """Does nothing: a launch here begins when the one before it has ended."""


@builtin
def gdc_launch_dependents() -> None:
    """Does nothing: the next launch waits for this one."""


__all__ = [
    "gdc_launch_dependents",
    "gdc_wait",
    "globaltimer",
    "libdevice",
    "num_threads",
    "num_warps",
    "smid",
]
