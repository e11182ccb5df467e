"""Arguments that share memory: a kernel means the same whatever it is handed over."""

from __future__ import annotations

import linecache
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.generators import checked
from tests.seeds import drawn
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.driver.tile import overlap as tile_overlap
from tilewright.driver.tile.overlap import NEAR, SAME, aliasing, span
from tilewright.lang.tile.language.descriptors import TensorDescriptor


@tw.jit
def shifted(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) + 1)


@tw.jit
def backwards(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + B - 1 - i))


@tw.jit
def exchange(x, y, first, second, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    b = tl.load(y + i)
    tl.store(first + i, b)
    tl.store(second + i, a)


@tw.jit
def turned(x, out, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.load(x + j * N + i))


@tw.jit
def masked(m, x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    chosen = tl.load(m + i) > 0
    tl.store(out + i, tl.load(x + i), mask=chosen)


@tw.jit
def scattered(places, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + tl.load(places + i), i)


@tw.jit
def later(places, zeros, out, B: tl.constexpr):
    i = tl.arange(0, B)
    target = out + tl.load(places + i)
    tl.store(zeros + i, i * 0)
    tl.store(target, i)


@tw.jit
def counted(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i // 2, tl.load(x + i // 2) + 1)


@tw.jit
def softmax(x, out, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + i, i < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * n + i, v / tl.sum(v, 0), i < n)


@tw.jit
def swapped_bits(x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.load(x + i).to(tl.int32))


@tw.jit
def through_tuple(pair, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(pair[1] + i, tl.load(pair[0] + i) + 1)


@tw.jit
def through_descriptors(x, out, N: tl.constexpr):
    out.store([0, 0], x.load([0, 0]) + 1)


def natively_and_stepwise(f, arguments, *rest, grid=(1,)):
    """What memory holds after a launch of each; `arguments` makes it and views of it."""
    contents = []
    for stepped in (False, True):
        with knobs.interpret.override(stepped), knobs.tile_check.override(None):
            memory, given = arguments()
            tw.jit(f.fn)[grid](*given, *rest)
            contents.append(memory.clone() if isinstance(memory, torch.Tensor) else memory.copy())
    return contents


def agree(f, arguments, *rest, grid=(1,)):
    native, stepped = natively_and_stepwise(f, arguments, *rest, grid=grid)
    np.testing.assert_array_equal(np.asarray(native), np.asarray(stepped))
    return np.asarray(native)


@pytest.mark.parametrize("by", [-33, -4, -1, 0, 1, 3, 16, 100])
@pytest.mark.parametrize("f", [shifted, backwards, turned])
def test_views_of_one_storage(f, by):
    n = 1024

    def arguments():
        memory = torch.arange(3 * n, dtype=torch.float32)
        return memory, (memory[n : 2 * n], memory[n + by : 2 * n + by])

    got = agree(f, arguments, 32 if f is turned else n)
    if f is shifted:
        want = np.arange(3 * n, dtype=np.float32)
        want[n + by : 2 * n + by] = np.arange(n, 2 * n) + 1
        np.testing.assert_array_equal(got, want)


def test_what_was_read_stays_read():
    def arguments():
        memory = torch.arange(256.0)
        a, b = memory[:128], memory[128:]
        return memory, (a, b, a, b)

    got = agree(exchange, arguments, 128)
    np.testing.assert_array_equal(got, [*range(128, 256), *range(128)])


@pytest.mark.parametrize("by", [0, 1, -1, 5])
def test_masks_are_read_before_anything_is_written(by):
    def arguments():
        rng = np.random.default_rng(0)
        memory = torch.from_numpy(rng.integers(-2, 3, 400, dtype=np.int32))
        return memory, (memory[100:228], memory[270:398], memory[100 + by : 228 + by])

    agree(masked, arguments, 128)


@pytest.mark.parametrize("together", [False, True])
def test_places_are_read_before_anything_is_written(together):
    def arguments():
        memory = torch.zeros(256, dtype=torch.int32)
        memory[:128] = torch.randperm(128, generator=torch.Generator().manual_seed(5))
        places = memory[:128]
        return memory, (places, places if together else memory[128:])

    agree(scattered, arguments, 128)


def test_places_that_change_before_they_are_used():
    def arguments():
        memory = torch.zeros(256, dtype=torch.int32)
        memory[:128] = torch.randperm(128, generator=torch.Generator().manual_seed(6))
        return memory, (memory[:128], memory[:128], memory[128:])

    agree(later, arguments, 128)


def test_two_elements_at_one_place_are_both_read_first():
    memory = torch.zeros(64)
    shared = tw.jit(counted.fn)
    shared[(1,)](memory, memory, 64)
    assert memory.tolist() == [1.0] * 32 + [0.0] * 32


def test_in_place_and_adjacent():
    x = torch.randn(5, 100)
    want = torch.softmax(x, 1)
    f = tw.jit(softmax.fn)
    out = torch.empty_like(x)
    f[(5,)](x, out, 100, 128)
    torch.testing.assert_close(out, want)
    f[(5,)](x, x, 100, 128)
    torch.testing.assert_close(x, want)
    (kernel,) = f.kernels.values()
    assert list(kernel.variants) == [(SAME,)]


def test_the_same_memory_as_two_dtypes():
    def arguments():
        memory = torch.arange(300, dtype=torch.float32)
        return memory, (memory[4:260], memory.view(torch.int32)[3:259])

    agree(swapped_bits, arguments, 256)


def test_tuples_and_descriptors():
    def tuples():
        memory = torch.arange(300.0)
        return memory, ((memory[:256], memory[1:257]),)

    def descriptors():
        memory = torch.arange(300.0)
        x, out = memory[:256].view(16, 16), memory[3:259].view(16, 16)
        pair = (TensorDescriptor(t, [16, 16], [16, 1], [16, 16]) for t in (x, out))
        return memory, tuple(pair)

    agree(through_tuple, tuples, 256)
    agree(through_descriptors, descriptors, 16)


def test_arrays():
    def forward():
        memory = np.arange(300, dtype=np.float32)
        return memory, (memory[:256], memory[1:257])

    def shared_with_torch():
        memory = np.arange(300, dtype=np.float32)
        return memory, (torch.from_numpy(memory)[:256], memory[2:258])

    agree(shifted, forward, 256)
    agree(shifted, shared_with_torch, 256)


class Bare:
    """An address and nothing else."""

    def __init__(self, tensor):
        self.dtype = tensor.dtype
        self.address = tensor.data_ptr()

    def data_ptr(self):
        return self.address


def test_addresses_without_a_size_may_be_anywhere():
    memory = torch.arange(300.0)
    f = tw.jit(shifted.fn)
    f[(1,)](Bare(memory), Bare(memory[1:]), 256)
    want = [0.0, *(k + 1.0 for k in range(256)), *map(float, range(257, 300))]
    assert memory.tolist() == want
    (kernel,) = f.kernels.values()
    assert list(kernel.variants) == [(NEAR,)]


class Wrapped(Bare):
    """An address in the storage of a tensor, as libraries wrap them."""

    def __init__(self, tensor):
        super().__init__(tensor)
        self.untyped_storage = tensor.untyped_storage


def test_addresses_in_storages_of_their_own_do_not_overlap():
    x, out = torch.arange(300.0), torch.zeros(300)
    f = tw.jit(shifted.fn)
    f[(1,)](Wrapped(x[8:]), Wrapped(out), 256)
    assert out[:256].tolist() == [k + 9.0 for k in range(256)]
    (kernel,) = f.kernels.values()
    assert not kernel.variants
    f[(1,)](Wrapped(x), Wrapped(x[1:]), 256)
    assert x[:257].tolist() == [0.0, *(k + 1.0 for k in range(256))]
    outside = Wrapped(x)
    outside.address += x.nbytes
    assert span(outside, outside.address) == tile_overlap._ALL


def test_arguments_that_are_only_read_may_share_memory():
    @tw.jit
    def add(x, y, out, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) + tl.load(y + i))

    memory, out = torch.arange(300.0), torch.empty(256)
    add[(1,)](memory, memory[1:], out, 256)
    np.testing.assert_array_equal(out, np.arange(256) * 2 + 1)
    (kernel,) = add.kernels.values()
    assert not kernel.variants and kernel.relation is not None


def test_one_argument_asks_nothing():
    @tw.jit
    def fill(out, B: tl.constexpr):
        tl.store(out + tl.arange(0, B), 1.0)

    kernel = fill[(1,)](torch.zeros(64), 64)
    assert kernel.relation is None


def test_what_an_argument_reaches():
    x = torch.zeros(10, 10)
    begin, end = span(x[3:, 2:], x[3:, 2:].data_ptr())
    assert (begin, end) == (x.data_ptr(), x.data_ptr() + 400)
    a = np.zeros((10, 10), np.float32)
    assert span(a[5:, ::-1], 0) == span(a, 0) == (a.ctypes.data, a.ctypes.data + 400)
    empty = np.zeros((3, 0))
    assert span(empty, 0) == (empty.ctypes.data, empty.ctypes.data)
    flipped = np.frombuffer(bytearray(40), np.float32)[::-1]
    low, high = span(flipped, 0)
    assert high - low == 40
    assert span(SimpleNamespace(), 5) == tile_overlap._ALL


def test_overlaps_as_lowering_takes_them():
    pairs = [(2, 0), (2, 1), (3, 1)]
    assert aliasing(pairs, (SAME, NEAR, 0)).same == ((0, 2),)
    assert aliasing(pairs, (SAME, NEAR, 0)).near == ((0, 1),)
    both = aliasing(pairs, (SAME, SAME, SAME))
    assert both.same == ((0, 1), (0, 2), (0, 3)) and not both.near
    assert aliasing([(0, 1), (1, 0)], (NEAR, NEAR)).near == ((0, 1),)


# ---- random kernels

POINTERS = 4
BLOCK = 64


def random_kernel(rng: random.Random) -> str:
    """Loads and stores through four pointers at moved, reversed, coarse and chosen places."""
    lines = [
        f"def random_overlap({', '.join(f'p{k}' for k in range(POINTERS))}, B: tl.constexpr):",
        "    i = tl.arange(0, B)",
    ]
    numbers: list[str] = []
    masks = ["i < B", f"i < {rng.randrange(1, BLOCK)}"]

    def place() -> str:
        by = rng.randrange(-20, 20)
        form = rng.choice(["i", "i", "i", "B - 1 - i", "2 * i", "(i * 5) % B"])
        if numbers and rng.random() < 0.15:
            form = f"(({rng.choice(numbers)} % B + B) % B)"
        return f"p{rng.randrange(POINTERS)} + {form} + {by}"

    def number() -> str:
        made = rng.choice(numbers)
        return rng.choice([made, f"{made} * 3 + {rng.choice(numbers)}", f"{made} - i"])

    for step in range(rng.randrange(4, 10)):
        if not numbers or rng.random() < 0.5:
            name = f"v{step}"
            mask = f", {rng.choice(masks)}, other={step}" if rng.random() < 0.3 else ""
            lines.append(f"    {name} = tl.load({place()}{mask})")
            numbers.append(name)
            if rng.random() < 0.3:
                lines.append(f"    m{step} = {name} % 3 == 0")
                masks.append(f"m{step}")
        else:
            # Where two elements have one place either may stay: not through loaded or coarse ones.
            where = rng.choice(["i", "B - 1 - i", "2 * i", "(i * 5) % B"])
            target = f"p{rng.randrange(POINTERS)} + {where} + {rng.randrange(-20, 20)}"
            mask = f", {rng.choice(masks)}" if rng.random() < 0.4 else ""
            lines.append(f"    tl.store({target}, {number()}{mask})")
    lines.append(f"    tl.store(p{rng.randrange(POINTERS)} + i, {numbers[-1]})")
    return "\n".join(lines) + "\n"


def defined(source: str, seed: int):
    name = f"<overlap {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope = {"tl": tl}
    exec(compile(source, name, "exec"), scope)
    return SimpleNamespace(fn=scope["random_overlap"])


def check_seed(seed: int) -> None:
    rng = random.Random(seed)
    source = random_kernel(rng)
    f = defined(source, seed)
    offsets = [rng.choice([100, 100, 100 + rng.randrange(70), 400, 700]) for _ in range(POINTERS)]

    def arguments():
        numbers = np.random.default_rng(seed).integers(-1000, 1000, 1000, dtype=np.int32)
        memory = torch.from_numpy(numbers)
        return memory, [memory[o:] for o in offsets]

    native, stepped = natively_and_stepwise(f, arguments, BLOCK)
    wrong = np.flatnonzero(np.asarray(native) != np.asarray(stepped))
    assert not len(wrong), f"seed {seed}, offsets {offsets}, element {wrong[0]}:\n{source}"


@pytest.mark.parametrize("seed", drawn(range(40), quick=7))
def test_random_kernels_over_views_of_one_storage(seed: int) -> None:
    check_seed(seed)


GENERATOR = checked("overlap", check_seed)


def test_arrays_come_to_the_kernel_of_an_empty_tensor() -> None:
    """A tensor without memory is bound as arrays are: what follows it may be of either kind."""

    @tw.jit
    def counted_up(x, out, n, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(out + i, tl.load(x + i, i < n) + 1, i < n)

    counted_up[(1,)](torch.empty(0), torch.empty(0), 0, 16)
    memory = np.zeros(64, np.float32)
    first = -memory.ctypes.data % 16 // 4  # aligned, as no memory at all is
    x, out = memory[first : first + 16], memory[first + 16 : first + 32]
    counted_up[(1,)](x, out, 16, 16)
    assert len(counted_up.kernels) == 2 and out.tolist() == [1.0] * 16
    out.flags.writeable = False
    with pytest.raises(Invalid, match="argument out of counted_up: a read-only array"):
        counted_up[(1,)](x, out, 16, 16)


def test_a_tensor_that_is_declared_as_another_dtype_begins_where_its_storage_does() -> None:
    @tw.jit
    def bits(x: "*i16", out: "*i16", B: tl.constexpr):  # type: ignore  # noqa: F722
        i = tl.arange(0, B)
        tl.store(out + i, tl.load(x + i) + 1)

    memory = torch.arange(32, dtype=torch.int32)
    wanted = memory.view(torch.int16).clone()
    wanted[17:33] = wanted[16:32] + 1
    bits[(1,)](memory[8:], memory.view(torch.int16)[17:], 16)
    assert torch.equal(memory.view(torch.int16), wanted)


@tw.jit
def summed_late(x, flag, total, B: tl.constexpr):
    v = tl.exp(tl.load(x + tl.arange(0, B)))
    tl.store(flag, 5.0)
    tl.store(total, tl.sum(v, 0))


def test_a_sum_is_not_joined_across_a_store_into_what_it_adds_up() -> None:
    x, total = torch.zeros(64), torch.zeros(1)
    summed_late[(1,)](x, torch.zeros(1), total, B=64)
    assert total.item() == 64
    summed_late[(1,)](x, x[3:], total, B=64)
    assert total.item() == 64 and x[3].item() == 5
