"""A program that asks torch for a GPU sees one; torch itself, and Dynamo, do not."""

import ctypes
import warnings

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
import tilewright.triton as compat
from tilewright.lang.tile.front import functions

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def on_cpu():
    try:
        yield compat.install(device="cpu")
    finally:
        compat.uninstall()


@tw.jit
def add_one(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)


def test_a_program_sees_one_device():
    x = torch.ones(3, device="cuda")
    assert (x.device.type, x.device.index, x.get_device(), x.is_cuda) == ("cuda", 0, 0, True)
    assert x.device == torch.device("cuda", torch.cuda.current_device())
    assert torch.empty_like(x, device=x.device).device == x.device
    assert torch.zeros(2, device="meta").device.type == "meta"
    assert torch.cuda.is_initialized() and torch.cuda.device_count() == 1
    assert torch.cuda.device(0).idx == torch.cuda.device(x.device).idx == 0
    with torch.cuda.device(x.device), torch.cuda.device_of(x), torch.device("cuda"):
        assert torch.empty(2).is_cpu
    assert torch.get_device_module("cuda").current_device() == 0
    with pytest.raises(tw.Invalid, match="there is one device"):
        torch.cuda.set_device(1)
    with pytest.raises(tw.Invalid, match="there is one device"):
        torch.cuda.device("cuda:3")


def test_torch_itself_sees_the_truth():
    namespace: dict = {"__name__": "torch.of_a_test", "torch": torch}
    exec("found = torch.cuda.is_available()\ndef at(x): return x.device, x.is_cuda", namespace)
    assert not namespace["found"] and torch.cuda.is_available()
    assert namespace["at"](torch.ones(1)) == (torch.device("cpu"), False)
    with torch.random.fork_rng():  # would ask a GPU for its state
        torch.rand(1)
    assert "cuda" not in repr(torch.ones(1))


def test_installing_again_tells_dynamo_nothing_new():
    """Each entry makes its pattern of file names longer, and slower to compile."""
    rules = pytest.importorskip("torch._dynamo.trace_rules")
    compat.install(device="cpu")
    entries, pattern = list(rules.SKIP_DIRS), rules.SKIP_DIRS_RE
    assert len(entries) == len(set(entries))
    compat.uninstall()
    compat.install(device="cpu")
    assert rules.SKIP_DIRS == entries and rules.SKIP_DIRS_RE is pattern
    assert rules.check_file(tw.jit.__code__.co_filename).skipped
    assert not rules.check_file(functions.__file__).skipped


def test_streams_and_events():
    stream = torch.cuda.current_stream()
    handle = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(0))
    assert stream.cuda_stream == 0 and not handle.value and stream == torch.cuda.default_stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(tw.Invalid, match="not recorded"):
        start.elapsed_time(end)
    with torch.cuda.stream(torch.cuda.Stream(priority=-1)) as side:
        start.record(side)
        side.wait_stream(stream)
        side.wait_event(start)
    end.record()
    torch.cuda.synchronize(torch.device("cuda"))
    assert start.elapsed_time(end) >= 0 and end.query()
    torch.ones(2).record_stream(stream)
    torch.cuda.set_stream(stream)
    # torch's own classes for any device query the one in use.
    start, end = (torch.Event(enable_timing=True) for _ in range(2))
    with torch.Stream(device="cuda") as side:
        start.record(side)
    end.record()
    assert start.elapsed_time(end) >= 0
    assert torch.get_device_module() is torch.cuda
    assert torch.get_device_module("cpu") is torch.cpu
    assert torch.get_device_module.__wrapped__("cpu") is torch.cpu  # Dynamo asks for it


def test_memory():
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    large = torch.ones(1 << 26)  # so much that what the system takes back meanwhile is little
    assert torch.cuda.max_memory_allocated() >= before + large.nbytes // 2
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] >= before
    assert "bytes" in torch.cuda.memory_summary()
    torch.cuda.empty_cache()
    assert torch.accelerator.is_available() and torch.accelerator.memory_allocated() > 0
    assert torch.accelerator.current_accelerator() == torch.device("cuda")


def test_random_numbers():
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    x = torch.rand(3, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(x, torch.rand(3, device="cuda"))
    generator = torch.Generator("cuda:0").manual_seed(1)
    assert torch.rand(2, generator=generator, device="cuda").is_cpu


def test_a_gpu_s_random_state_is_a_seed_and_an_offset():
    (generator,) = torch.cuda.default_generators
    torch.cuda.manual_seed(5)
    state = generator.get_state()
    assert state.view(torch.int64).tolist() == [5, 0]
    x = torch.rand(3, generator=generator)
    state.view(torch.int64)[1] += 8
    generator.set_state(state)
    assert generator.get_offset() == 8 and generator.initial_seed() == 5
    assert torch.equal(torch.rand(3, generator=generator.manual_seed(5)), x)
    generator.set_state(torch.tensor([-2, 4]).view(torch.uint8))
    assert generator.initial_seed() == 2**64 - 2
    assert generator.get_state().view(torch.int64).tolist() == [-2, 4]


def test_marks_and_profilers():
    torch.cuda.nvtx.range_push("a")
    torch.cuda.nvtx.mark("b")
    torch.cuda.nvtx.range_pop()
    with torch.cuda.nvtx.range("c"):
        torch.cuda.cudart().cudaProfilerStart()
    with pytest.raises(tw.Unsupported, match="cudaGraphLaunch"):
        torch.cuda.cudart().cudaGraphLaunch()


def test_what_no_table_answers_is_named():
    with pytest.raises(tw.Unsupported, match=r"torch.cuda.utilization"):
        torch.cuda.utilization()
    with pytest.raises(tw.Unsupported, match=r"torch.cuda.memory_snapshot"):
        torch.cuda.memory_snapshot()
    every = [n for n in torch.cuda.__all__ if callable(getattr(torch.cuda, n))]
    for name in every:
        function = getattr(torch.cuda, name)
        if isinstance(function, type) or name in ("init", "memory_snapshot"):
            continue
        try:
            function()
        except (tw.Unsupported, TypeError):  # by name, or for want of arguments
            continue


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_autocast(dtype):
    a = torch.randn(4, 4, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cuda", dtype=dtype):
            assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
            assert (a @ a).dtype == (dtype or torch.float16)
        with torch.autocast("cuda", enabled=False):
            assert (a @ a).dtype == torch.float32
    scaler = torch.amp.GradScaler("cuda")
    assert scaler.is_enabled()

    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert x.dtype == torch.float32
            return x * 2

    with torch.autocast("cuda"):
        assert Doubled.apply(a.half()).dtype == torch.float32


def test_copies_between_devices_are_copies():
    x = torch.zeros(4)
    y, z = x.cuda(), x.to("cuda:0")
    y += 1
    z += 2
    assert x.sum() == 0 and y.sum() == 4 and z.sum() == 8
    assert y.cuda() is y and y.to("cuda") is y and y.to(y.device) is y
    back = y.cpu()
    y += 1
    assert back.sum() == 4 and back.cpu() is back
    whole = np.zeros(3, np.float32)
    torch.from_numpy(whole).to("cuda").add_(1)
    assert not whole.any()
    p = torch.nn.Linear(2, 2)
    weight = p.weight
    assert p.cuda().weight is weight


# ---- operators of a library


def test_pinned_memory_is_memory():
    """It is what a GPU can copy from by itself; here everything can."""
    x = torch.arange(3, dtype=torch.int32, pin_memory=True, device="cpu")
    assert x.is_pinned() and x.tolist() == [0, 1, 2]
    assert torch.ones(2).new_zeros(2, pin_memory=True).is_pinned()
    y = torch.ones(3)
    assert not y.is_pinned() and not torch.ones(1, pin_memory=False).is_pinned()
    z = y.pin_memory()
    assert z.is_pinned() and z.data_ptr() != y.data_ptr() and z.pin_memory() is z
    assert z.to("cuda", non_blocking=True).tolist() == [1, 1, 1]


def test_operators_registered_for_cuda():
    library = torch.library.Library("tw_test_cuda", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.define("both(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CUDA")
    library.impl("both", lambda x: x * 3, "CPU")
    library.impl("both", lambda x: x * 2, "CUDA")
    more = torch.library.Library("tw_test_cuda", "IMPL", "CUDA")
    library.define("by_key(Tensor x) -> Tensor")
    more.impl("by_key", lambda x: x * 2)
    library.define("last(Tensor x) -> Tensor")
    library.impl("last", lambda x: x * 2, "CUDA")
    library.impl("last", lambda x: x * 3, "CPU")

    @torch.library.custom_op("tw_test_cuda::own", mutates_args=(), device_types="cuda")
    def own(x: torch.Tensor) -> torch.Tensor:  # type: ignore
        return x * 2

    library.define("named(Tensor x) -> Tensor")

    @torch.library.impl("tw_test_cuda::named", "cuda")
    def named(x):
        return x * 2

    x = torch.ones(3, device="cuda")
    for name in "twice both by_key last own named".split():
        assert getattr(torch.ops.tw_test_cuda, name)(x).sum() == 6, name


# ---- graphs


def test_graphs_replay_what_was_captured():
    x = torch.zeros(8, device="cuda")
    count = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = x * 2
        add_one[(1,)](y, 8, BLOCK=8)
        z = y.view(2, 4).sum(1)
        count += 1
    assert not torch.cuda.is_current_stream_capturing()
    assert count.item() == 0  # a capture runs nothing that can be seen
    for k in range(1, 4):
        x.fill_(k)
        graph.replay()
        assert z.tolist() == [4 * (2 * k + 1)] * 2 and count.item() == k
    needs_a_value = pytest.raises(tw.Unsupported, match="_local_scalar_dense while a graph")
    with needs_a_value, torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(tw.Invalid, match="not captured"):
        torch.cuda.CUDAGraph().replay()
