"""`tilewright.language` has Triton's names, and they are what they are called."""

import inspect

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tests.lang.tile.library import run, run_eagerly, tile
from tilewright.base.errors import Invalid
from tilewright.lang.tile.front.functions import TileFunction

# What triton.language 3.9 exports.
OPERATIONS = """
    abs add arange associative_scan assume atomic_add atomic_and atomic_cas atomic_max
    atomic_min atomic_or atomic_poll atomic_xchg atomic_xor broadcast broadcast_to cast cat ceil
    clamp condition cos debug_barrier device_assert device_print div_rn dot dot_scaled erf exp
    exp2 expand_dims expect_zero fdiv floor fma full gather histogram inline_asm_elementwise
    join load load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor
    map_elementwise max_constancy max_contiguous maximum minimum mul multiple_of num_programs
    permute program_id range reduce reshape rsqrt sin split sqrt sqrt_rn static_assert
    static_print static_range store store_tensor_descriptor sub to_tensor trans umulhi view
    where
""".split()
LIBRARY = """
    argmax argmin bitonic_merge cdiv cumprod cumsum flip interleave max min pair_uniform_to_normal
    philox philox_impl rand rand4x randint randint4x randn randn4x ravel reduce_or sigmoid softmax
    sort squeeze sum swizzle2d topk uint_to_uniform_float unsqueeze xor_sum zeros zeros_like
""".split()
TYPES = """
    bfloat16 float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 int1
    int16 int32 int64 int8 pi32_t uint16 uint32 uint64 uint8 void
""".split()
CLASSES = """
    PropagateNan block_type const constexpr constexpr_type dtype pointer_type slice tensor
    tensor_descriptor tensor_descriptor_type tuple tuple_type
""".split()
OTHERS = "TRITON_MAX_TENSOR_NUMEL extra math target_info".split()


@pytest.mark.parametrize("name", [*OPERATIONS, *LIBRARY, *TYPES, *CLASSES, *OTHERS])
def test_every_name_is_there(name):
    assert name in tl.__all__ and hasattr(tl, name)


def test_what_is_exported_is_there():
    assert len(LIBRARY) == 33
    for name in tl.__all__:
        assert getattr(tl, name) is not None


def test_the_library_is_written_in_the_language():
    for name in LIBRARY:
        f = getattr(tl, name)
        assert isinstance(f, TileFunction) and f.name == name, name
        assert f.__doc__, name


def test_operations_are_marked_and_explained():
    for name in OPERATIONS:
        f = getattr(tl, name)
        assert inspect.isclass(f) or getattr(f, "__tile_builtin__", False), name


def test_classes_and_types():
    for name in CLASSES:
        assert inspect.isclass(getattr(tl, name)), name
    for name in TYPES:
        assert isinstance(getattr(tl, name), tl.dtype), name
    assert str(tl.float32) == "fp32" and tl.float32.primitive_bitwidth == 32
    assert tl.TRITON_MAX_TENSOR_NUMEL == 1 << 20


def test_namespaces_hold_the_same_functions():
    assert tl.math.exp is tl.exp and tl.core.tensor is tl.tensor
    assert tl.standard.sum is tl.sum and tl.random.rand is tl.rand
    assert tl.random.N_ROUNDS_DEFAULT.value == 10


def test_libdevice_under_its_names():
    x = tile([0.5, -0.5])
    (found,) = run(tl.extra.libdevice.tanh, x)
    np.testing.assert_allclose(found, np.tanh(x.array), rtol=1e-6)
    assert tl.extra.cuda.libdevice.tanh is tl.extra.libdevice.tanh
    assert tl.extra.hip.libdevice.add_rz is tl.extra.libdevice.add_rz
    assert "fast_dividef" in dir(tl.extra.libdevice)
    with pytest.raises(AttributeError):
        _ = tl.extra.libdevice.no_such_function


def test_what_asks_a_card_about_itself_is_refused():
    for name in ("globaltimer", "smid", "num_warps", "num_threads"):
        with pytest.raises(Invalid, match=name):
            getattr(tl.extra.cuda, name)()


def test_the_target_is_a_cpu():
    info = tl.target_info
    assert info.current_target().backend == "cpu"
    queries = [info.is_cuda, info.is_hip, info.is_hip_cdna3, info.is_hip_cdna4, info.is_hip_gfx1250]
    assert not any(f() for f in queries)
    assert not info.cuda_capability_geq(8, 0)


def generation(out):
    found = 0
    if tl.target_info.is_cuda():
        found = 9 if tl.target_info.cuda_capability_geq(9) else 8
    elif tl.target_info.is_hip_cdna4():
        found = 4
    tl.store(out, found)


def test_kernels_and_programs_see_one_backend(monkeypatch):
    """The caller of a kernel gets the same answers, and the cache distinguishes them."""
    found = []
    for backend in ("cpu", "cuda:80", "cuda:90", "cuda:103", "hip:gfx950", "hip:gfx942"):
        monkeypatch.setenv("TILEWRIGHT_TRITON_BACKEND", backend)
        out = np.zeros(1, np.int32)
        tw.jit(generation)[(1,)](out)
        found.append(out[0])
    assert found == [0, 8, 9, 9, 4, 0]


def test_constants_go_through_the_library():
    def both(x):
        if tl.target_info.is_cuda():
            return x
        return x + tl.cdiv(7, 2)

    assert run_eagerly(both, tile([1], tl.int32))[0].array.tolist() == [5]
