"""torchao asks for the version of CUDA before it tests floats of 8 bits; no answer means no GPU."""

import torch

setattr(torch.version, "cuda", "12.9")  # noqa: B010  # a constant, where type checkers read it
