"""conch: attention of one query over keys in parts, which its own tests compare with vLLM's."""

from __future__ import annotations

import torch
from reference import attention, close, randn


def test_attention_over_many_keys() -> None:
    from conch.ops.attention.varlen_attention import varlen_attention

    lengths, block, blocks = [4096, 3000], 64, 64
    keys, values = (randn(2 * blocks, block, 2, 32, seed=s) for s in range(2))
    table = torch.randperm(2 * blocks, generator=torch.Generator().manual_seed(0)).view(2, blocks)
    q = randn(2, 4, 32, seed=2)
    got = varlen_attention(
        query=q,
        key_cache=keys,
        value_cache=values,
        cu_seqlens_q=torch.tensor([0, 1, 2], dtype=torch.int32),
        max_seqlen_q=1,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        max_seqlen_k=4096,
        block_table=table.int(),
    )
    for row, length in enumerate(lengths):
        k, v = (t[table[row]].flatten(0, 1)[:length].transpose(0, 1) for t in (keys, values))
        k, v = (t.repeat_interleave(2, 0) for t in (k, v))
        close(got[row], attention(q[row][:, None], k, v)[:, 0], factor=10)
