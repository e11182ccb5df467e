"""Large results of training graphs, whose memory serves the next step (runtime/room.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._dynamo import guards

from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.driver.torch.many import span
from tilewright.ir.slots import Buffer
from tilewright.runtime.room import LEAST, Room, room

# Torch's function for compiled code: a tensor of the same memory, and no view of the other one.
_tensor_of = getattr(guards, "_reinterpret_tensor", None)


@dataclass(frozen=True)
class LargeResults:
    """Makes tensors in a room's memory. These are as others are, but that their storage cannot be
    resized."""

    room: Room

    @staticmethod
    def of(program: Any) -> LargeResults | None:
        """For a program, as long as it lives. None where there is no such memory. The program's
        own large arena lies there, too: what a forward pass needed for a while, its gradients
        take."""
        found = room() if _tensor_of is not None else None
        if found is None:
            return None
        found.join(program)
        program.room = found
        return LargeResults(found)

    def maker(self, b: Buffer) -> Callable[[], torch.Tensor] | None:
        """A function that makes such tensors; None where they are small, or of any size."""
        shape, stride = (tuple(d for d in x if isinstance(d, int)) for x in (b.shape, b.stride))
        if (len(shape), len(stride)) != (len(b.shape), len(b.stride)):
            return None
        dtype = torch_dtype(b.dtype, b.paired)
        count = span(shape, stride)
        size = count * dtype.itemsize
        if size < LEAST:
            return None
        piece, tensor_of = self.room.piece, _tensor_of
        plain, of_memory = torch.empty_strided, torch.frombuffer
        assert tensor_of is not None

        def make() -> torch.Tensor:
            memory = piece(size)
            if memory is None:
                return plain(shape, stride, dtype=dtype)
            return tensor_of(of_memory(memory, dtype=dtype, count=count), shape, stride, 0)

        return make
