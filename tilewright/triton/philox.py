"""The generator of a GPU's random numbers, as programs read it that draw numbers in kernels.

Its state is 16 bytes: a seed, and how many numbers were drawn. A kernel's `tl.rand` takes both.
"""

from __future__ import annotations

import functools
from typing import Any

STATE = 16  # bytes


@functools.cache
def gpu_generator() -> Any:
    """The one of the only GPU. Functions of torch draw from it as from any other generator."""
    import torch

    class Philox(torch._C.Generator):
        drawn = 0

        def manual_seed(self, seed: int) -> Philox:
            super().manual_seed(seed)
            self.drawn = 0
            return self

        def get_offset(self) -> int:
            return self.drawn

        def set_offset(self, offset: int) -> Philox:
            self.drawn = int(offset)
            return self

        def get_state(self) -> torch.Tensor:
            seed = self.initial_seed()
            signed = seed - (1 << 64 if seed >> 63 else 0)
            return torch.tensor([signed, self.drawn], dtype=torch.int64).view(torch.uint8)

        def set_state(self, new_state: torch.Tensor) -> Philox:
            if new_state.numel() != STATE:  # one of a CPU's generator
                super().set_state(new_state)
                return self
            seed, drawn = new_state.view(torch.int64).tolist()
            if (seed - self.initial_seed()) % (1 << 64):
                self.manual_seed(seed)
            return self.set_offset(drawn)

    return Philox(device="cpu")
