"""vLLM: caches in which keys are rotated and have few bits, in both of its layouts."""

from __future__ import annotations

import pytest
import torch
from drive_vllm import function, ints
from reference import close, randn

OPS = "v1.attention.ops."
WIDTH, PAGE, HEADS, GROUPS = 32, 16, 4, 2
LENGTHS, TABLE = (21, 9), ints(3, 1, 2, 0).view(2, 2)
SLOTS = [
    int(TABLE[r, p // PAGE]) * PAGE + p % PAGE for r, n in enumerate(LENGTHS) for p in range(n)
]
KINDS = ["8", "4", "3"]  # bits of keys; values have four


def rotation() -> torch.Tensor:
    """Hadamard's, which is its own inverse."""
    h = torch.ones(1, 1)
    while len(h) < WIDTH:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
    return h / WIDTH**0.5


def levels(bits: int) -> torch.Tensor:
    return torch.linspace(-0.4, 0.4, 1 << bits)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.half().double()


def stored(
    k: torch.Tensor, v: torch.Tensor, bits: int, corrected: bool, whole: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as they come back; those of few bits in the rotated space. `whole`: length
    and correction are stored as one number."""
    low, high = v.double().amin(-1, keepdim=True), v.double().amax(-1, keepdim=True)
    step = (high - low) / 15
    values = ((v.double() - low) / step + 0.5).floor().clamp(0, 15) * rounded(step) + rounded(low)
    if bits == 8:
        return k.double(), values
    length = k.double().norm(dim=-1, keepdim=True)
    at = levels(bits).double()
    near = ((k.double() / length) @ rotation().double())[..., None] - at
    chosen = at[near.abs().argmin(-1)]
    size = chosen.norm(dim=-1, keepdim=True) if corrected else torch.ones_like(length)
    return chosen * rounded(length / size) if whole else chosen / size * rounded(length), values


def filled(
    module: str, kind: str, corrected: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, torch.Tensor]:
    """Keys and values, the cache with them, the bytes of a key, and the levels of keys."""
    bits, soa = int(kind), "soa" in module
    # On older GPUs floats of 8 bits end below two.
    k, v = randn(30, GROUPS, WIDTH) / 3, randn(30, GROUPS, WIDTH, seed=1)
    data = WIDTH * bits // 8
    size = data if bits == 8 else data + 2
    cache = torch.zeros(4, PAGE, GROUPS, size + 16 + 4, dtype=torch.uint8)
    at = levels(min(bits, 4))
    more = {"centroids": at, "norm_correction": corrected} if soa and bits < 8 else {}
    function(OPS + module + "triton_turboquant_store", "triton_turboquant_store")(
        k, v, cache, torch.tensor(SLOTS, dtype=torch.int32), rotation(), (at[1:] + at[:-1]) / 2,
        min(bits, 4), size, 4, key_fp8=bits == 8, **more,
    )  # fmt: skip
    return k, v, cache, size, at


def attended(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, n: int) -> torch.Tensor:
    """The last n tokens of each request attend to all before them."""
    out, start, at = [], 0, 0
    for length in LENGTHS:
        k, v = (x[start : start + length].repeat_interleave(2, 1) for x in (keys, values))
        s = torch.einsum("nhd,mhd->hnm", q[at : at + n], k) * WIDTH**-0.5
        hidden = torch.arange(length) > torch.arange(length - n, length)[:, None]
        s = s.masked_fill(hidden, -torch.inf).softmax(-1)
        out.append(torch.einsum("hnm,mhd->nhd", s, v))
        start, at = start + length, at + n
    return torch.cat(out)


def compare(got: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: str,
            corrected: bool, whole: bool, n: int = 1) -> None:  # fmt: skip
    keys, values = stored(k, v, int(kind), corrected, whole)
    turned = q.double() if kind == "8" else q.double() @ rotation().double()
    wanted = attended(turned, keys, values, n)
    # Keys of 8 bits are off by up to a sixteenth.
    atol = 0.03 if kind == "8" else 0.01
    torch.testing.assert_close(got.double(), wanted, rtol=0.02, atol=atol)


@pytest.mark.parametrize("module", ["", "turboquant_soa."])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("corrected", [False, True])
def test_attention_of_single_tokens(module: str, kind: str, corrected: bool) -> None:
    k, v, cache, size, at = filled(module, kind, corrected)
    q = randn(2, HEADS, WIDTH)
    got = function(OPS + module + "triton_turboquant_decode", "triton_turboquant_decode_attention")(
        q, cache, TABLE, ints(*LENGTHS), rotation(), at, WIDTH**-0.5, min(int(kind), 4), size, 4,
        key_fp8=kind == "8", norm_correction=corrected, max_num_kv_splits=2,
    )  # fmt: skip
    compare(got, q, k, v, kind, corrected, whole=bool(module))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_groups_of_heads(kind: str) -> None:
    module = "turboquant_soa."
    k, v, cache, size, at = filled(module, kind, False)
    q = randn(2, HEADS, WIDTH)
    got = function(OPS + module + "triton_turboquant_decode_v2",
                   "triton_turboquant_decode_attention_v2")(
        q, cache, TABLE, ints(*LENGTHS), rotation(), at, WIDTH**-0.5, min(int(kind), 4), size, 4,
        20, key_fp8=kind == "8", max_num_kv_splits=2,
    )  # fmt: skip
    compare(got, q, k, v, kind, False, whole=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "longest"), [(1, 21), (1, 1024), (3, 21)])
def test_attention_of_all_tokens(kind: str, n: int, longest: int) -> None:
    """Where requests may be long, the keys of a token are taken in parts."""
    module = "turboquant_soa."
    k, v, cache, size, at = filled(module, kind, False)
    q = randn(2 * n, HEADS, WIDTH)
    got = function(OPS + module + "triton_turboquant_unified_attention",
                   "triton_turboquant_unified_attention")(
        q, cache, TABLE, ints(*LENGTHS), ints(0, n, 2 * n), rotation(), at, WIDTH**-0.5,
        min(int(kind), 4), size, 4, 20, key_fp8=kind == "8", max_query_len=n, max_seq_len=longest,
        num_kv_splits=2,
    )  # fmt: skip
    compare(got, q, k, v, kind, False, whole=True, n=n)


@pytest.mark.parametrize("module", ["", "turboquant_soa."])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_stored(module: str, kind: str) -> None:
    k, v, cache, size, at = filled(module, kind, False)
    eight, bits = kind == "8", min(int(kind), 4)
    data = WIDTH * bits // 8
    a, b = (torch.zeros(1, GROUPS, 21, WIDTH, dtype=torch.float16) for _ in range(2))
    path = OPS + module + "triton_turboquant_decode"
    layout = {"HEAD_DIM": WIDTH, "BLOCK_SIZE": PAGE, "NUM_KV_HEADS": GROUPS, "VQB": 4,
              "MSE_BYTES": data, "VAL_DATA_BYTES": 16, "MSE_BITS": bits, "KEY_FP8": int(eight),
              "BLOCK_D": WIDTH, "FP8_E4B15": function(path, "_use_fp8_e4b15")()}  # fmt: skip
    kernel = function(path, "_tq_full_dequant_kv")
    strides = (*a.stride()[:3], *b.stride()[:3])
    if module:
        each = (WIDTH if eight else data) + 16
        layout |= {"KEY_DATA_BYTES": each - 16, "META_REGION_OFFSET": PAGE * GROUPS * each,
                   "NUM_SOA_FIELDS": 2 if eight else 3, "SOA_K_NORM": 0,
                   "SOA_V_SCALE": 0 if eight else 1, "SOA_V_ZERO": 1 if eight else 2}  # fmt: skip
        kernel[(21, GROUPS)](cache, cache.view(torch.uint16), TABLE, at, a, b, *strides,
                             cache.stride(0), 2, **layout)  # fmt: skip
    else:
        kernel[(21, GROUPS)](cache, TABLE, at, a, b, *strides, *cache.stride()[:3], 2, KPS=size,
                             **layout)  # fmt: skip
    keys, values = stored(k[:21], v[:21], int(kind), False, bool(module))
    close(b[0].transpose(0, 1), values)
    if eight:
        assert ((a[0].transpose(0, 1).double() - keys).abs() <= keys.abs() / 15 + 0.002).all()
    else:
        close(a[0].transpose(0, 1), keys)


# ---- keys and values of 4 bits, each with a scale and a zero


def unpacked(cache: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """(page, token, head, width); the low bits of a scale are the zero."""
    low = scales.view(torch.int32) & 15
    step = (scales.view(torch.int32) & -16).view(torch.float32)
    nibbles = torch.stack((cache & 15, cache >> 4), -1).flatten(-2)
    return (nibbles.double() - low[..., None]) * step.double()[..., None]


@pytest.mark.parametrize("n", [1, 3])
def test_attention_over_4_bits(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = OPS + "int4_per_token_head"
    monkeypatch.setitem(
        function(path, "single_rht").__globals__, "_HADACORE_AVAILABLE", False
    )  # that is for GPUs
    k, v = randn(30, GROUPS, WIDTH), randn(30, GROUPS, WIDTH, seed=1)
    keys, values = (torch.zeros(4, PAGE, GROUPS, WIDTH // 2, dtype=torch.uint8) for _ in range(2))
    by, on = torch.zeros(4, PAGE, GROUPS), torch.zeros(4, PAGE, GROUPS)
    function(path, "reshape_and_cache_int4")(
        k, v, keys, values, torch.tensor(SLOTS), k_scale_cache=by, v_scale_cache=on
    )
    signs = function(path, "_get_rht_signs")(WIDTH, 0, torch.device("cpu")).double()
    turn = signs[:, None] * rotation().double() * WIDTH**0.5
    back = []
    for cache, scales, x in ((keys, by, k), (values, on, v)):
        whole = unpacked(cache, scales).flatten(0, 1)[SLOTS]
        step = scales.flatten(0, 1)[SLOTS].double()[..., None]
        exact = x.double() @ turn
        assert ((whole - exact).abs() <= 1.1 * step + exact.abs() / 60).all()
        back.append(whole)
    q, out = randn(2 * n, HEADS, WIDTH), torch.zeros(2 * n, HEADS, WIDTH)
    function(path, "unified_attention_int4")(
        q, keys, values, out, cu_seqlens_q=ints(0, n, 2 * n), max_seqlen_q=n,
        seqused_k=ints(*LENGTHS), max_seqlen_k=21, softmax_scale=WIDTH**-0.5,
        window_size=(-1, -1), block_table=TABLE, softcap=0.0, sinks=None, alibi_slopes=None,
        use_alibi_sqrt=False, qq_bias=None, output_scale=None, mm_prefix_range=None,
        k_scale_cache=by, v_scale_cache=on,
    )  # fmt: skip
    wanted = attended(q.double() @ turn / WIDTH, *back, n=n) @ turn.T / WIDTH
    torch.testing.assert_close(out.double(), wanted, rtol=0.03, atol=0.03)
