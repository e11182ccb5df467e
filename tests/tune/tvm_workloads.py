"""The workloads on which tuning is compared with TVM's: shapes of their operands, alone, so that a
Python without torch or Tilewright may read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """`kind` says which function; `shapes` are those of its operands, all float32."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]
    stride: int = 1
    padding: int = 0
    weights: int = 1  # the first operand that a network would have as a constant


WORKLOADS: dict[str, Workload] = {
    "matmul_512": Workload("matmul", ((512, 512), (512, 512))),
    "matmul_128x3072x768": Workload("matmul", ((128, 3072), (3072, 768))),
    "batched_matmul": Workload("bmm", ((12, 128, 64), (12, 64, 128)), weights=2),
    "conv3x3": Workload("conv", ((1, 64, 56, 56), (64, 64, 3, 3)), padding=1),
    "conv3x3_stride_2": Workload("conv", ((1, 64, 56, 56), (128, 64, 3, 3)), 2, 1),
    "conv1x1": Workload("conv", ((1, 64, 56, 56), (256, 64, 1, 1))),
    "depthwise": Workload("depthwise", ((1, 144, 56, 56), (144, 1, 3, 3)), padding=1),
    "transposed_conv": Workload("transposed", ((1, 64, 28, 28), (64, 32, 4, 4)), 2, 1),
    "softmax": Workload("softmax", ((1024, 1024),)),
    "layer_norm": Workload("layer_norm", ((1024, 1024), (1024,), (1024,))),
    "conv_bias_relu": Workload("biased", ((1, 64, 56, 56), (64, 64, 3, 3), (64,)), padding=1),
    "tiny_matmul": Workload("matmul", ((24, 40), (40, 56))),
    "tiny_softmax": Workload("softmax", ((40, 72),)),
}
# Those are for trying things out: they are measured where they are named.
TINY = ("tiny_matmul", "tiny_softmax")
