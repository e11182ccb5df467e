"""What layers of known networks gain by other programs: `python -m tests.superopt.partial.gains`.

For each layer: its arithmetic and time as it is compiled by default, and those of every candidate,
measured in turn. Names choose layers (`gains aspp csrnet`); `--count` leaves the clock out.
"""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

from tests.superopt.partial.samples import convolution
from tilewright import targets
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.searched import medians
from tilewright.graph.classify import facts, flops
from tilewright.graph.pack import is_constant
from tilewright.ir.node import Graph, Node
from tilewright.superopt.partial.corrected import candidates
from tilewright.superopt.partial.layers import Layer


def dilated(channels: int, results: int, size: int, dilation: int, batch: int = 1) -> Layer:
    image, weight = (batch, channels, size, size), (results, channels, 3, 3)
    return convolution(image, weight, (dilation, dilation), dilation=dilation)


LAYERS = {
    # DeepLabV3 on images of 257 and 513: spatial pyramid, and the last stages of its ResNet
    "aspp-12-33": lambda: dilated(2048, 256, 33, 12),
    "aspp-24-33": lambda: dilated(2048, 256, 33, 24),
    "aspp-36-33": lambda: dilated(2048, 256, 33, 36),
    "aspp-24-65": lambda: dilated(2048, 256, 65, 24),
    "aspp-36-65": lambda: dilated(2048, 256, 65, 36),
    "resnet-2-33": lambda: dilated(256, 256, 33, 2),
    "resnet-4-33": lambda: dilated(512, 512, 33, 4),
    "resnet-4-65": lambda: dilated(512, 512, 65, 4),
    # CSRNet behind VGG on an image of 512 by 384, and one of an odd size
    "csrnet-512": lambda: convolution((1, 512, 48, 64), (512, 512, 3, 3), (2, 2), dilation=2),
    "csrnet-odd": lambda: convolution((1, 512, 47, 63), (512, 512, 3, 3), (2, 2), dilation=2),
    "csrnet-128": lambda: convolution((1, 256, 48, 64), (128, 256, 3, 3), (2, 2), dilation=2),
    # Inception-v3: 1x3 and 1x7
    "inception-1x3": lambda: convolution((16, 384, 8, 8), (384, 384, 1, 3), (0, 1)),
    "inception-1x7": lambda: convolution((1, 192, 17, 17), (192, 192, 1, 7), (0, 3)),
    # ResNet's last stage, several images
    "resnet-7": lambda: convolution((8, 512, 7, 7), (512, 512, 3, 3), (1, 1)),
}


def arithmetic(graph: Graph) -> float:
    """Operations of all products of a call, in 10^9, as the default passes leave them."""
    made = passes().run(graph, targets.default(), Log())
    constant: set[Node] = set()
    total = 0
    for n in made.nodes():
        if is_constant(n, constant):
            constant.add(n)
        elif facts(n).kind == "contract":
            total += flops(n)
    return total / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of layers' names")
    parser.add_argument("--count", action="store_true", help="arithmetic only")
    given = parser.parse_args()
    chosen = [n for n in LAYERS if not given.names or any(x in n for x in given.names)]
    for name in chosen:
        began = time.perf_counter()
        layer = LAYERS[name]()
        found = candidates(layer, targets.default())
        took = time.perf_counter() - began
        graphs = [layer.graph, *(Graph("other", layer.inputs, (c.program,)) for c in found)]
        seconds: list[float] = [0.0 for _ in graphs]
        if not given.count and found:
            seconds = medians(graphs[0], [compile_graph(g, Options()) for g in graphs])
        table = Table(
            title=f"{name}: {len(found)} candidates in {took:.1f} s", title_justify="left"
        )
        for column in ("boxes", "GFLOP", "us", "times as fast", "how"):
            table.add_column(column, justify="left" if column == "how" else "right")
        how = ["by default", *(c.how for c in found)]
        boxes = [1, *(c.boxes for c in found)]
        for g, b, s, text in zip(graphs, boxes, seconds, how, strict=True):
            ratio = f"{seconds[0] / s:.2f}" if s else ""
            clock = f"{s * 1e6:.0f}" if s else ""
            table.add_row(str(b), f"{arithmetic(g):.3f}", clock, ratio, text)
        Console(width=160).print(table)


if __name__ == "__main__":
    main()
