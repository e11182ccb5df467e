"""Packed sequences, captured.

Torch refuses to look into `pack_padded_sequence`, since data decides the size of what it gives.
What stands in its place while a program is captured keeps the padded sequences and their lengths
beside the packed form. Recurrent layers and `pad_packed_sequence` work on those, whose sizes are
known: steps beyond a sequence's end leave its state as it is. The packed form itself is computed
only where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tilewright.capture.torch.recurrent import define_packed
from tilewright.capture.torch.substitutes import Takes, substitute

_EMPTY = (
    "Length of all samples has to be greater than 0, but found an element in 'lengths' that is <= 0"
)
_ORDER = (
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You can pass"
    " `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to sidestep this"
    " requirement if you do not need ONNX exportability."
)
_LONG = "`lengths` has a length that is larger than the padded sequences are"


def _inside(lengths: Tensor, steps: int) -> Tensor:
    """[steps, sequences]: is there such a step?"""
    return torch.arange(steps, device=lengths.device).unsqueeze(1) < lengths


class Packed(PackedSequence):
    """A packed sequence that knows its padded form [steps, sequences, …]. Both have the longest
    sequence first."""

    padded: Tensor
    lengths: Tensor

    def __new__(
        cls,
        padded: Tensor,
        lengths: Tensor,
        sorted_indices: Tensor | None,
        unsorted_indices: Tensor | None,
    ) -> Packed:
        inside = _inside(lengths, padded.shape[0])
        sizes = inside.sum(1)[: lengths[0].item()]
        self = super().__new__(cls, padded[inside], sizes, sorted_indices, unsorted_indices)
        self.padded, self.lengths = padded, lengths
        return self


def packed(
    input: Tensor,
    lengths: Tensor | Sequence[int],
    batch_first: bool = False,
    enforce_sorted: bool = True,
) -> Packed:
    """What `pack_padded_sequence` does."""
    if isinstance(lengths, Tensor):
        lengths = lengths.to(torch.int64)
    else:
        lengths = torch.as_tensor(lengths, dtype=torch.int64)
    padded = input.transpose(0, 1) if batch_first else input
    if lengths.dim() != 1 or lengths.shape[0] != padded.shape[1]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.shape[0]} "
            f"(batch_size={padded.shape[1]})"
        )
    order = back = None
    if enforce_sorted:
        torch._assert_async((lengths[:-1] >= lengths[1:]).all(), _ORDER)
    else:
        lengths, order = torch.sort(lengths, descending=True)
        back = torch.argsort(order)
        padded = padded.index_select(1, order)
    torch._assert_async((lengths > 0).all(), _EMPTY)
    torch._assert_async((lengths <= padded.shape[0]).all(), _LONG)
    return Packed(padded, lengths, order, back)


def unpacked(
    sequence: Packed,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What `pad_packed_sequence` does."""
    padded, lengths = sequence.padded, sequence.lengths
    steps = padded.shape[0]
    inside = _inside(lengths, steps)
    shown = inside.reshape(*inside.shape, *[1] * (padded.dim() - 2))
    padded = torch.where(shown, padded, padding_value)
    if total_length is None:
        longest = lengths[0].item()
        torch._check(longest >= 1)
        torch._check(longest <= steps)
        padded = padded[:longest]
    elif total_length < steps:
        torch._assert_async(
            (lengths <= total_length).all(),
            f"Expected total_length to be at least the length of the longest sequence in input, "
            f"but got total_length={total_length}",
        )
        padded = padded[:total_length]
    elif total_length > steps:
        rest = padded.new_full((total_length - steps, *padded.shape[1:]), padding_value)
        padded = torch.cat([padded, rest])
    if sequence.unsorted_indices is not None:
        padded = padded.index_select(1, sequence.unsorted_indices)
        lengths = lengths[sequence.unsorted_indices]
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def recurrent(layer: Any, input: Packed, hx: Any = None) -> tuple[Packed, Any]:
    """What a recurrent layer of torch does to a packed sequence."""
    padded, lengths = input.padded, input.lengths
    sequences = padded.shape[1]
    several = layer.mode == "LSTM"
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    if hx is None:
        width = layer.proj_size if layer.proj_size > 0 else layer.hidden_size
        states = [padded.new_zeros(count, sequences, width)]
        if several:
            states.append(padded.new_zeros(count, sequences, layer.hidden_size))
    else:
        states = list(hx) if several else [hx]
        for s in states:
            if s.dim() != 3 or s.shape[0] != count or s.shape[1] != sequences:
                raise RuntimeError(
                    f"Expected hidden size ({count}, {sequences}, …), got {list(s.shape)}"
                )
        if input.sorted_indices is not None:
            states = [s.index_select(1, input.sorted_indices) for s in states]
    whole, *last = torch.ops.tilewright.packed_recurrent(
        layer.mode,
        padded,
        lengths,
        states,
        layer._flat_weights,
        layer.bias,
        layer.num_layers,
        layer.dropout,
        layer.training,
        layer.bidirectional,
    )
    if input.unsorted_indices is not None:
        last = [s.index_select(1, input.unsorted_indices) for s in last]
    out = Packed(whole, lengths, input.sorted_indices, input.unsorted_indices)
    return out, (tuple(last) if several else last[0])


def _is_packed(place: int) -> Takes:
    """Of others, which come from outside, not even the number of sequences is known."""

    def takes(operands: Sequence[Any], named: Mapping[str, Any]) -> bool:
        return len(operands) > place and operands[place].python_type() is Packed

    return takes


define_packed(_inside)

substitute(pack_padded_sequence, packed)
substitute(pad_packed_sequence, unpacked, _is_packed(0))
for _layer in (nn.LSTM, nn.GRU, nn.RNN):
    substitute(_layer.forward, recurrent, _is_packed(1))
