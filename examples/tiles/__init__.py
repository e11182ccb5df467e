"""Kernels in the tile language, each a file to read from top to bottom.

    python -m examples.tiles                          # checks and times all of them
    python -m examples.tiles softmax matmul --plot pictures
    python -m examples.tiles --quick                  # small sizes, few rounds

Every file has the same parts: why the kernel is written as it is, the kernel, a function that
launches it, a check against float64 with torch as the yardstick, and what is timed against torch.
"""
