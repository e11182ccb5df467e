"""Groups as fusion makes them, written as text: the shapes that default schedules must handle."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernel.group import Group
from tilewright.kernel.text import parse_group


@dataclass(frozen=True)
class Example:
    text: str
    dims: tuple[dict[str, int], ...] = ({},)

    @property
    def group(self) -> Group:
        return parse_group(self.text)


_SYMBOLIC = ({"S": 1, "C": 7}, {"S": 9, "C": 37})
_ROWS = ({"S": 1}, {"S": 7}, {"S": 20})

EXAMPLES: dict[str, Example] = {
    "scalar": Example("""
group scalar
  in a0: f32[]
  out y0: f32[]
  y0[] = exp(a0[]) for once
"""),
    "broadcast": Example("""
group broadcast
  in a0: f32[13,37]
  in a1: f32[37]
  out y0: f32[13,37]
  y0[y0.i0,y0.i1] = exp(a0[y0.i0,y0.i1]) + a1[y0.i1] for y0.i0 in 13, y0.i1 in 37
"""),
    "transpose": Example("""
group transpose
  in a0: f32[4,5,6]
  out y0: f32[4,6,5]
  y0[y0.i0,y0.i1,y0.i2] = a0[y0.i0,y0.i2,y0.i1] * 2.0 for y0.i0 in 4, y0.i1 in 6, y0.i2 in 5
"""),
    "chain": Example("""
group chain
  in a0: f32[9,21]
  out y0: f32[9,21]
  local t0: f32[9,21]
  local t1: f32[9,21]
  t0[t0.i0,t0.i1] = tanh(a0[t0.i0,t0.i1]) for t0.i0 in 9, t0.i1 in 21
  t1[t1.i0,t1.i1] = t0[t1.i0,t1.i1] * 0.5 for t1.i0 in 9, t1.i1 in 21
  y0[y0.i0,y0.i1] = t0[y0.i0,y0.i1] + t1[y0.i0,y0.i1] for y0.i0 in 9, y0.i1 in 21
"""),
    "symbolic-map": Example(
        """
group symbolic_map where C: 1.., S: 1..
  in a0: f32[S,C]
  in a1: f32[C]
  out y0: f32[S,C]
  y0[y0.i0,y0.i1] = a0[y0.i0,y0.i1] * a1[y0.i1] for y0.i0 in S, y0.i1 in C
""",
        _SYMBOLIC,
    ),
    "two-outputs": Example("""
group two_outputs
  in a0: f32[6,17]
  out y0: f32[6,17]
  out y1: f32[6,17]
  y0[y0.i0,y0.i1] = a0[y0.i0,y0.i1] + 1.0 for y0.i0 in 6, y0.i1 in 17
  y1[y1.i0,y1.i1] = a0[y1.i0,y1.i1] * 2.0 for y1.i0 in 6, y1.i1 in 17
"""),
    "padded": Example("""
group padded
  in a0: f32[6,7]
  out y0: f32[9,11]
  y0[y0.i0,y0.i1] = select(#(y0.i0-1) >= 0 & #(y0.i0-1) < 6 & #(y0.i1-2) >= 0 & #(y0.i1-2) < 7, a0[y0.i0-1,y0.i1-2], 0.5) for y0.i0 in 9, y0.i1 in 11
"""),
    "gather": Example("""
group gather
  in a0: f32[11,20]
  in a1: i64[9]
  out y0: f32[9,20]
  y0[y0.i0,y0.i1] = a0[${max(min(a1[y0.i0], 10), 0)},y0.i1] for y0.i0 in 9, y0.i1 in 20
"""),
    "softmax": Example("""
group softmax
  in a0: f32[13,37]
  out y0: f32[13,37]
  local t0: f32[13]
  local t1: f32[13,37]
  local t2: f32[13]
  t0[t0.i0] max= a0[t0.i0,t0.r0] for t0.i0 in 13, t0.r0 in 37 from -inf
  t1[t1.i0,t1.i1] = exp(a0[t1.i0,t1.i1] - t0[t1.i0]) for t1.i0 in 13, t1.i1 in 37
  t2[t2.i0] add= t1[t2.i0,t2.r0] for t2.i0 in 13, t2.r0 in 37 from 0.0
  y0[y0.i0,y0.i1] = t1[y0.i0,y0.i1] / t2[y0.i0] for y0.i0 in 13, y0.i1 in 37
"""),
    "symbolic-softmax": Example(
        """
group symbolic_softmax where C: 1.., S: 1..
  in a0: f32[S,C]
  out y0: f32[S,C]
  local t0: f32[S]
  local t1: f32[S,C]
  local t2: f32[S]
  t0[t0.i0] max= a0[t0.i0,t0.r0] for t0.i0 in S, t0.r0 in C from -inf
  t1[t1.i0,t1.i1] = exp(a0[t1.i0,t1.i1] - t0[t1.i0]) for t1.i0 in S, t1.i1 in C
  t2[t2.i0] add= t1[t2.i0,t2.r0] for t2.i0 in S, t2.r0 in C from 0.0
  y0[y0.i0,y0.i1] = t1[y0.i0,y0.i1] / t2[y0.i0] for y0.i0 in S, y0.i1 in C
""",
        _SYMBOLIC,
    ),
    "layer-norm": Example("""
group layer_norm
  in a0: f32[5,40]
  in a1: f32[40]
  out y0: f32[5]
  out y1: f32[5]
  out y2: f32[5,40]
  local t0: f32[5]
  local t1: f32[5]
  t0[t0.i0] add= a0[t0.i0,t0.r0] for t0.i0 in 5, t0.r0 in 40 from 0.0
  y0[y0.i0] = t0[y0.i0] / 40.0 for y0.i0 in 5
  t1[t1.i0] add= (a0[t1.i0,t1.r0] - y0[t1.i0]) * (a0[t1.i0,t1.r0] - y0[t1.i0]) for t1.i0 in 5, t1.r0 in 40 from 0.0
  y1[y1.i0] = rsqrt(t1[y1.i0] / 40.0 + 1e-05) for y1.i0 in 5
  y2[y2.i0,y2.i1] = (a0[y2.i0,y2.i1] - y0[y2.i0]) * y1[y2.i0] * a1[y2.i1] for y2.i0 in 5, y2.i1 in 40
"""),
    "column-sum": Example("""
group column_sum
  in a0: f32[21,35]
  out y0: f32[35]
  local t0: f32[35]
  t0[t0.i0] add= a0[t0.r0,t0.i0] for t0.i0 in 35, t0.r0 in 21 from 0.0
  y0[y0.i0] = t0[y0.i0] for y0.i0 in 35
"""),
    "channel-sum": Example("""
group channel_sum
  in a0: f32[3,4,5,6]
  out y0: f32[4]
  local t0: f32[4]
  t0[t0.i0] add= a0[t0.r0,t0.i0,t0.r1,t0.r2] for t0.i0 in 4, t0.r0 in 3, t0.r1 in 5, t0.r2 in 6 from 0.0
  y0[y0.i0] = t0[y0.i0] for y0.i0 in 4
"""),
    "total": Example("""
group total
  in a0: f64[19,23]
  out y0: f64[]
  local t0: f64[]
  t0[] add= a0[t0.r0,t0.r1] for t0.r0 in 19, t0.r1 in 23 from 0.0:f64
  y0[] = t0[] for once
"""),
    "first-maximum": Example("""
group first_maximum
  in a0: i32[8,30]
  out y0: i64[8]
  local t0: i32[8]
  local t1: i64[8]
  t0[t0.i0] max= a0[t0.i0,t0.r0] for t0.i0 in 8, t0.r0 in 30 from -2147483648:i32
  t1[t1.i0] min= select(a0[t1.i0,t1.r0] == t0[t1.i0], #(t1.r0), 9223372036854775807) for t1.i0 in 8, t1.r0 in 30 from 9223372036854775807
  y0[y0.i0] = t1[y0.i0] for y0.i0 in 8
"""),
    "any": Example("""
group any
  in a0: bool[7,19]
  out y0: bool[7]
  local t0: bool[7]
  t0[t0.i0] or= a0[t0.i0,t0.r0] for t0.i0 in 7, t0.r0 in 19 from false
  y0[y0.i0] = t0[y0.i0] for y0.i0 in 7
"""),
    "half-sum": Example("""
group half_sum
  in a0: f16[6,33]
  out y0: f16[6]
  local t0: f32[6]
  t0[t0.i0] add= cast<f32>(a0[t0.i0,t0.r0]) for t0.i0 in 6, t0.r0 in 33 from 0.0
  y0[y0.i0] = cast<f16>(t0[y0.i0]) for y0.i0 in 6
"""),
    "max-pool": Example("""
group max_pool
  in a0: f32[3,9,11]
  out y0: f32[3,4,5]
  local t0: f32[3,4,5]
  t0[t0.i0,t0.i1,t0.i2] max= a0[t0.i0,2*t0.i1+t0.r0,2*t0.i2+t0.r1] for t0.i0 in 3, t0.i1 in 4, t0.i2 in 5, t0.r0 in 3, t0.r1 in 3 from -inf
  y0[y0.i0,y0.i1,y0.i2] = t0[y0.i0,y0.i1,y0.i2] for y0.i0 in 3, y0.i1 in 4, y0.i2 in 5
"""),
    "matmul": Example("""
group matmul
  in a0: f32[13,6]
  in a1: f32[6,29]
  out y0: f32[13,29]
  local t0: f32[13,29]
  t0[t0.i0,t0.i1] add= a0[t0.i0,t0.r0] * a1[t0.r0,t0.i1] for t0.i0 in 13, t0.i1 in 29, t0.r0 in 6 from 0.0
  y0[y0.i0,y0.i1] = t0[y0.i0,y0.i1] for y0.i0 in 13, y0.i1 in 29
"""),
    "symbolic-matmul": Example(
        """
group symbolic_matmul where S: 1..
  in a0: f32[S,10]
  in a1: f32[10,29]
  out y0: f32[S,29]
  local t0: f32[S,29]
  t0[t0.i0,t0.i1] add= a0[t0.i0,t0.r0] * a1[t0.r0,t0.i1] for t0.i0 in S, t0.i1 in 29, t0.r0 in 10 from 0.0
  y0[y0.i0,y0.i1] = t0[y0.i0,y0.i1] for y0.i0 in S, y0.i1 in 29
""",
        _ROWS,
    ),
    "packed-linear": Example("""
group packed_linear
  in a0: f32[17,14]
  in a1: f32[3,14,12]
  in a2: f32[32]
  out y0: f32[17,32]
  local t0: f32[17,32]
  t0[t0.i0,t0.i1] add= a0[t0.i0,t0.r0] * a1[(t0.i1//12),t0.r0,(t0.i1%12)] for t0.i0 in 17, t0.i1 in 32, t0.r0 in 14 from 0.0
  y0[y0.i0,y0.i1] = max(t0[y0.i0,y0.i1] + a2[y0.i1], 0.0) for y0.i0 in 17, y0.i1 in 32
"""),
    "convolution": Example("""
group convolution
  in a0: f32[1,3,9,10]
  in a1: f32[2,3,3,3,12]
  out y0: f32[1,20,7,8]
  local t0: f32[1,20,7,8]
  t0[t0.i0,t0.i1,t0.i2,t0.i3] add= a0[t0.i0,t0.r0,t0.i2+t0.r1,t0.i3+t0.r2] * a1[(t0.i1//12),t0.r0,t0.r1,t0.r2,(t0.i1%12)] for t0.i0 in 1, t0.i1 in 20, t0.i2 in 7, t0.i3 in 8, t0.r0 in 3, t0.r1 in 3, t0.r2 in 3 from 0.0
  y0[y0.i0,y0.i1,y0.i2,y0.i3] = t0[y0.i0,y0.i1,y0.i2,y0.i3] for y0.i0 in 1, y0.i1 in 20, y0.i2 in 7, y0.i3 in 8
"""),
    "depthwise": Example("""
group depthwise
  in a0: f32[2,5,9,10]
  in a1: f32[5,3,3]
  out y0: f32[2,5,4,4]
  local t0: f32[2,5,4,4]
  t0[t0.i0,t0.i1,t0.i2,t0.i3] add= a0[t0.i0,t0.i1,2*t0.i2+t0.r0,2*t0.i3+t0.r1] * a1[t0.i1,t0.r0,t0.r1] for t0.i0 in 2, t0.i1 in 5, t0.i2 in 4, t0.i3 in 4, t0.r0 in 3, t0.r1 in 3 from 0.0
  y0[y0.i0,y0.i1,y0.i2,y0.i3] = t0[y0.i0,y0.i1,y0.i2,y0.i3] for y0.i0 in 2, y0.i1 in 5, y0.i2 in 4, y0.i3 in 4
"""),
    "running-sum": Example("""
group running_sum
  in a0: f32[6,12]
  out y0: f32[6,12]
  y0[y0.i0,y0.i1] = select(#(y0.i1) == 0, a0[y0.i0,y0.i1], y0[y0.i0,max(0,y0.i1-1)] + a0[y0.i0,y0.i1]) for y0.i0 in 6, y0.i1 in 12 in order
"""),
    "scatter-add": Example("""
group scatter_add
  in a0: f32[10,4]
  in a1: i64[15]
  in a2: f32[15,4]
  out y0: f32[10,4]
  y0[${max(min(a1[y0.i0], 9), 0)},y0.i1] add= a2[y0.i0,y0.i1] for y0.i0 in 15, y0.i1 in 4 in order from a0[y0.init.i0,y0.init.i1]
"""),
}
