"""Groups as fusion makes them: the shapes that default schedules must handle, one file each.

A file of groups/ holds a group's text and a line `dims S=3` for each choice of symbolic dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.kernel.fuzz import Sizes, parse_case
from tilewright.kernel.group import Group

FOLDER = Path(__file__).resolve().parent / "groups"


@dataclass(frozen=True)
class Example:
    text: str  # of the group alone
    group: Group
    dims: list[Sizes]


def _read(path: Path) -> Example:
    text = path.read_text()
    group, dims, _ = parse_case(text)
    return Example(text.split("dims ")[0], group, dims)


EXAMPLES = {path.stem: _read(path) for path in sorted(FOLDER.glob("*.txt"))}

# What tests of blocks and threads schedule.
MATMUL = """
group mm where K: 1.., M: 1.., N: 1..
  in a: f32[M,K]
  in b: f32[K,N]
  out y: f32[M,N]
  local t: f32[M,N]
  t[t.i0,t.i1] add= a[t.i0,t.r0] * b[t.r0,t.i1] for t.i0 in M, t.i1 in N, t.r0 in K from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in M, y.i1 in N
"""


def tiled_matmul(depth: int) -> str:
    """Steps that compute it in tiles, from copies of `depth` columns and rows of the operands."""
    return f"""
Split('y.i0', 8)
Split('y.i1', 4)
Reorder(('y.i0.0', 'y.i1.0', 'y.i0.1', 'y.i1.1'))
ComputeAt('t', 'y.i1.0')
Split('t.r0', {depth})
Reorder(('t.r0.0', 't.i0', 't.i1', 't.r0.1'))
CacheRead('a', 't', 'as')
CacheRead('b', 't', 'bs')
ComputeAt('as', 't.r0.0')
ComputeAt('bs', 't.r0.0')
"""


# Then those that make its tiles blocks of threads, and the copies shared memory.
BOUND_MATMUL = """
SetScope('as', 'shared')
SetScope('bs', 'shared')
Bind('y.i0.0', 'block.y')
Bind('y.i1.0', 'block.x')
Bind('y.i0.1', 'thread.y')
Bind('y.i1.1', 'thread.x')
Bind('t.init.i0', 'thread.y')
Bind('t.init.i1', 'thread.x')
Bind('t.i0', 'thread.y')
Bind('t.i1', 'thread.x')
Bind('as.i0', 'thread.y')
Bind('as.i1', 'thread.x')
Bind('bs.i0', 'thread.y')
Bind('bs.i1', 'thread.x')
"""
