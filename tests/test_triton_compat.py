"""Ours in Triton's place: modules are found, scripts run unchanged, and all is undone."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
import tilewright.triton as compat
from tilewright.base import knobs

torch = pytest.importorskip("torch")


@pytest.fixture
def triton() -> Any:
    try:
        yield compat.install()
    finally:
        compat.uninstall()


@pytest.fixture
def on_cpu() -> Any:
    try:
        yield compat.install(device="cpu")
    finally:
        compat.uninstall()


@pytest.mark.parametrize(
    "name",
    """language language.core language.math language.extra language.extra.libdevice
    language.extra.cuda.libdevice language.extra.cpu.libdevice
    testing runtime runtime.jit runtime.autotuner runtime.errors
    runtime.driver runtime.cache runtime.interpreter compiler compiler.errors compiler.compiler
    backends backends.compiler backends.driver tools tools.tensor_descriptor knobs errors
    _utils profiler profiler.viewer language.target_info language.extra.hip tools.ragged_tma ops
    ops.matmul_perf_model experimental experimental.gluon experimental.gluon.language.nvidia.hopper
    tools.experimental_descriptor""".split(),
)
def test_modules_are_found(triton, name):
    assert importlib.import_module(f"triton.{name}") is sys.modules[f"triton.{name}"]


def test_functions_that_always_run_step_by_step(triton, capsys):
    from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-not-found]

    def show(x):
        print(tw.language.load(x) + 1)

    f = InterpretedFunction(show)
    assert f[(1,)](torch.ones(1)).wants_given and isinstance(f, triton.JITFunction)
    assert capsys.readouterr().out == "fp32 2.0\n"


def test_paths_into_tuples(triton):
    from triton._utils import find_paths_if, get_iterable_path  # type: ignore[attr-defined]

    nested = (1, ("a", [2, "b"]), "c")
    paths = find_paths_if(nested, lambda path, x: isinstance(x, str))
    assert paths == [(1, 0), (1, 1, 1), (2,)]
    assert [get_iterable_path(nested, p) for p in paths] == ["a", "b", "c"]


def test_files_of_libraries_are_stored(triton, tmp_path):
    from triton.runtime.cache import (  # type: ignore[attr-defined]
        FileCacheManager,
        get_cache_manager,
    )

    with knobs.cache_dir.override(tmp_path):
        manager = get_cache_manager("00ff17")
        assert isinstance(manager, FileCacheManager)
        assert manager.get_file("a.txt") is None and manager.get_group("both") is None
        paths = {"a.txt": manager.put("text", "a.txt"), "b.bin": manager.put(b"\x00\xff", "b.bin")}
        assert Path(paths["a.txt"]).read_text() == "text"
        again = get_cache_manager("00ff17")
        assert again.get_file("b.bin") == paths["b.bin"]
        assert Path(paths["b.bin"]).read_bytes() == b"\x00\xff"
        manager.put_group("both", paths)
        assert again.get_group("both") == paths
        Path(paths["a.txt"]).unlink()
        assert again.get_group("both") is None
        assert get_cache_manager("00ff18").get_file("b.bin") is None


def test_a_second_time_it_listens_to_the_interpreter_too(triton, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with knobs.interpret.override(None):
        again = compat.install()
        assert knobs.interpret.get()
        assert sys.modules["triton.runtime.cache"].knobs is again.knobs


def test_names_that_scripts_import(triton):
    from triton import cdiv, next_power_of_2  # type: ignore[attr-defined]
    from triton.language.extra import libdevice
    from triton.runtime import driver
    from triton.tools.tensor_descriptor import TensorDescriptor

    assert (cdiv(5, 2), next_power_of_2(5)) == (3, 8)
    assert driver is sys.modules["triton.runtime"].driver
    assert callable(libdevice.asin) and TensorDescriptor is tw.TensorDescriptor
    for name in "jit autotune heuristics Config JITFunction CompilationError TritonError".split():
        assert hasattr(triton, name), name
    assert issubclass(triton.CompilationError, triton.TritonError)
    assert callable(triton.must_use_result) and callable(triton.aggregate)
    assert importlib.util.find_spec("triton") is not None


def test_the_host_side_answers_for_a_cpu(triton):
    active = triton.runtime.driver.active
    assert active.get_active_torch_device() == torch.device("cpu")
    assert active.get_current_target().backend == "cpu"
    properties = active.utils.get_device_properties(active.get_current_device())
    for name in ("multiprocessor_count", "max_num_regs", "max_shared_mem", "warpSize"):
        assert properties[name] > 0
    device = active.get_device_interface()
    start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
    start.record()
    end.record()
    device.synchronize()
    assert start.elapsed_time(end) >= 0
    assert active.get_benchmarker()(lambda: None, quantiles=[0.5], rep=0.1) >= 0
    triton.set_allocator(lambda size, alignment, stream: None)
    cache = active.get_empty_cache_for_benchmark()
    active.clear_cache(cache)
    assert not cache.any()


def test_all_is_undone():
    before = (torch.empty, torch.Tensor.to, torch.cuda.is_available, torch.Generator)
    assert "triton" not in sys.modules or not compat.installed()
    compat.install(device="cpu")
    compat.install(device="cpu")
    assert torch.empty is not before[0] and compat.installed()
    compat.uninstall()
    assert (torch.empty, torch.Tensor.to, torch.cuda.is_available, torch.Generator) == before
    assert not hasattr(torch.cpu, "set_stream") and not compat.installed()
    assert "is_cuda" not in vars(torch.Tensor)


def test_tensors_for_a_gpu_are_on_the_cpu(on_cpu):
    made = [
        torch.zeros(3, device="cuda"),
        torch.randn(3, device=torch.device("cuda:0")),
        torch.empty_like(torch.ones(2), device="cuda"),
        torch.ones(3).cuda(),
        torch.ones(3).to("cuda"),
        torch.ones(3).to(device="cuda", dtype=torch.float64),
        torch.ones(3).to(torch.device("cuda")),
        torch.ones(3).new_zeros(3, device="cuda"),
        torch.tensor([1.0], device=0),
        torch.nn.Linear(2, 2).to("cuda").weight,
        torch.nn.Linear(2, 2).cuda().weight,
        torch.rand(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(1)),
    ]
    assert all(x.is_cpu and x.is_cuda for x in made)
    assert {x.device for x in made} == {torch.device("cuda:0")}
    assert made[5].dtype == torch.float64
    assert torch.zeros(3, device="meta").device.type == "meta"


def test_questions_to_torch_cuda(on_cpu):
    assert torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.cuda.get_device_properties("cuda").multi_processor_count > 0
    assert len(torch.cuda.get_device_capability()) == 2
    torch.cuda.synchronize()
    torch.manual_seed(3)
    torch.cuda.manual_seed_all(3)
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        pass
    assert torch.cuda.get_device_properties(0).total_memory > 0


def test_a_device_that_is_none():
    with pytest.raises(tw.Invalid, match="device 'cuda'"):
        compat.install(device="cuda")


def test_names_of_what_a_cpu_does_not_have(triton: Any):
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import tma

    layout = gl.BlockedLayout([1], [32], [4], [0])  # as files do where they are imported

    jit: Any = gluon.jit

    @jit
    def copied(x, BLOCK: gl.constexpr):
        pass

    copy: Any = copied

    for use in (lambda: copy[(1,)](1), lambda: layout + 1, lambda: bool(tma.async_copy(1))):
        with pytest.raises(tw.Unsupported, match="Gluon places tiles"):
            use()
    compat.uninstall()
    with pytest.raises(ImportError):
        importlib.import_module("triton.experimental.gluon")


def test_attributes_that_libraries_read(triton: Any):
    import tilewright.language as tl

    @triton.jit(do_not_specialize=["n"])
    def one(x, n, BLOCK: tl.constexpr):
        tl.store(x, n)

    assert one.raw_src[0].strip().startswith("@triton.jit") and not one.is_gluon()
    assert one.get_capture_scope()["tl"] is tl and one.do_not_specialize == ["n"]
    assert one.params[2].num == 2 and one.params[2].is_constexpr
    assert Path(one.file_name).name == Path(__file__).name
    assert (
        one.raw_src[one.def_file_line_number - one.starting_line_number].strip().startswith("def")
    )
    assert one.parse().body[0].name == "one" and one.module == __name__
    x = torch.zeros(1)
    kernel = one[(1,)](x, 3, BLOCK=4)
    assert kernel in one.device_caches[0][0].values()
    assert kernel.shared == kernel.metadata.shared and kernel.num_warps == 4
    assert kernel.n_spills == 0 and kernel.src.fn is one and len(kernel.hash) == 64
    assert kernel.metadata.target.backend == "cpu" and "llir" in kernel.asm
    kernel.run(1, 1, 1, 0, None, (), None, None, None, x, 7, 4)
    assert x.item() == 7
    kernel.run(1, 1, 1, 0, None, (), None, None, None, x, 8)  # without what is constant
    assert x.item() == 8


def test_kernels_that_libraries_write(triton: Any):
    """They take another's attributes, put a text of their own in and say where it comes from."""
    import tilewright.language as tl

    @triton.jit(do_not_specialize=["n"])
    def template(x, scale, n):
        tl.store(x, n * scale)

    def shell():
        pass

    names = list(inspect.signature(triton.JITFunction.__init__).parameters)[2:]
    made = triton.JITFunction(shell, **{n: getattr(template, n, None) for n in names})
    made._unsafe_update_src("def shell():\n    scale = 2\n    unknown(scale)\n")
    made.raw_src, made.starting_line_number = list(template.raw_src), 99
    made.def_file_line_number, made.def_file_col_number = 99, 4
    made.file_name = "template.py"
    assert (made.def_file_line_number, made.file_name) == (99, "template.py")
    with pytest.raises(tw.TilewrightError, match=r"template\.py:101"):
        made[(1,)]()


def test_there_are_no_tools_of_a_vendor(triton: Any):
    assert triton.knobs.nvidia.ptxas.version == "0.0"


def test_tuners_of_libraries(triton: Any):
    """They are subclasses of Triton's, choose for themselves and measure with `_bench`."""
    import tilewright.language as tl

    class Tuner(triton.runtime.Autotuner):
        def run(self, *args, **kwargs):
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            times = {c: self._bench(*args, config=c, **kwargs) for c in self.prune_configs(kwargs)}
            best = min(times, key=lambda c: times[c][0])
            return self.fn.run(*args, **kwargs, **best.all_kwargs())

    @triton.jit
    def fill(x, n, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK < 64)
        i = tl.arange(0, BLOCK)
        tl.store(x + i, 1.0, i < n)

    configs = [triton.Config({"BLOCK": b}) for b in (16, 32, 64)]
    quick = {"num_warmups": 1, "num_reps": 1}
    names = {n: v for n, v in quick.items() if n in inspect.signature(Tuner).parameters}
    tuner = Tuner(fill, fill.arg_names, configs, ["n"], None, None, **names)
    x = torch.zeros(16)
    tuner[(1,)](x, 16)
    assert x.sum() == 16 and tuner.nargs["n"] == 16
    assert tuner._bench(x, 16, config=configs[2], grid=(1,)) == [float("inf")] * 3
    with pytest.raises(tw.Invalid, match="BLOCK, which its configurations choose"):
        tuner._bench(x, 16, config=configs[0], grid=(1,), BLOCK=16)


def test_hooks_of_launches(triton: Any):
    import tilewright.language as tl

    @triton.jit(launch_metadata=lambda grid, metadata, args: {"flops": args["n"]})
    def one(x, n):
        tl.store(x, n)

    heard = []
    hooks = triton.knobs.runtime
    hooks.launch_enter_hook.add(lambda launch: heard.append(("enter", launch.get())))
    hooks.launch_exit_hook = lambda launch: heard.append(("exit", launch.get()["flops"]))
    try:
        one[(1,)](torch.zeros(1), 5)
    finally:
        hooks.launch_enter_hook = hooks.launch_exit_hook = None
    one[(1,)](torch.zeros(1), 6)
    assert [h[0] for h in heard] == ["enter", "exit"] and heard[1][1] == 5
    assert heard[0][1]["name"] == "one"


def test_limits_of_the_machine(triton):
    single = importlib.import_module("triton.language").float32
    assert triton.testing.get_dram_gbps() > 0
    assert triton.testing.get_max_simd_tflops(single) > 0
    assert triton.testing.get_max_tensorcore_tflops(single, 1e6) > 0
    model = importlib.import_module("triton.ops.matmul_perf_model")
    sizes = {"A": torch.ones(1), "M": 4096, "N": 4096, "K": 4096}
    small = model.estimate_matmul_time(**sizes, BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
    large = model.estimate_matmul_time(**sizes, BLOCK_M=128, BLOCK_N=128, BLOCK_K=32)
    assert small > large > 0
    blocks = [{"BLOCK_M": b, "BLOCK_N": b, "BLOCK_K": b} for b in (16, 1 << 14)]
    configs = [triton.Config(b) for b in blocks]
    assert model.early_config_prune(configs, sizes) == configs[:1]


def test_slices_of_unequal_length(triton: Any):
    from triton.tools.ragged_tma import create_ragged_descriptor, load_ragged, store_ragged

    @triton.jit
    def shifted(x, out, start, size):
        block = load_ragged(x, start, size, [2, 0])
        store_ragged(out, start, size, [0, 0], block + 1)

    x, out = torch.arange(80.0).view(10, 8), torch.zeros(10, 8)
    given = [create_ragged_descriptor(t, [4, 8]) for t in (x, out)]
    shifted[(1,)](*given, 3, 3)
    wanted = torch.zeros(10, 8)
    wanted[3:6] = 1
    wanted[3] += x[5]
    assert torch.equal(out, wanted)


LATER: tw.language.constexpr = 5  # type: ignore[assignment]
PLAIN = 5


def test_constants_of_a_module(triton: Any):
    import tilewright.language as tl

    @triton.jit
    def declared(x, D: tl.constexpr):
        tl.store(x, tl.full([], LATER, D.value))

    @triton.jit
    def plain(x):
        tl.store(x, PLAIN)

    @triton.jit
    def old(x):
        a = tl.full([16, 16], 1.0, tl.float32)
        tl.store(x, tl.sum(tl.dot(a, a, trans_b=True)))

    x = torch.zeros(1)
    declared[(1,)](x, tl.float32)
    assert x.item() == 5
    with pytest.raises(triton.CompilationError, match=r"PLAIN: tl.constexpr = …"):
        plain[(1,)](x)
    with pytest.raises(triton.CompilationError, match=r"tl.dot\(a, tl.trans\(b\)\)"):
        old[(1,)](x)


# ---- knobs


def test_knobs(triton, monkeypatch):
    knobs = triton.knobs
    monkeypatch.setenv("TRITON_CACHE_AUTOTUNING", "0")
    assert knobs.autotuning.cache is False
    with knobs.autotuning.scope():
        knobs.autotuning.cache = True
        assert knobs.autotuning.cache is True
    assert knobs.autotuning.cache is False
    fresh = knobs.autotuning.copy().reset()
    assert fresh.knobs.keys() >= {"cache", "print"}
    before = knobs.runtime.debug
    try:
        knobs.runtime.debug = True
        assert knobs.runtime.debug is True
    finally:
        knobs.runtime.debug = before
    with pytest.raises(AttributeError, match="unheard_of"):
        knobs.runtime.unheard_of = 1


def test_a_listener_of_tuning(triton):
    heard = []
    triton.knobs.autotuning.listener = heard.append
    assert triton.knobs.autotuning.listener is not None
    triton.knobs.autotuning.listener = None
    assert triton.knobs.autotuning.listener is None


# ---- compiling without a launch


def test_sources_are_compiled(triton):
    import tilewright.language as tl

    @triton.jit
    def add_one(x, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)

    source = triton.compiler.ASTSource(add_one, {"x": "*fp32", "n": "i32"}, {"BLOCK": 16})
    kernel = triton.compile(source)
    assert kernel.signature["x"] == "*fp32" and kernel.constants["BLOCK"] == 16
    target = triton.backends.compiler.GPUTarget("cuda", 80, 32)
    with pytest.raises(tw.Unsupported, match="kernels for cuda"):
        triton.compile(source, target=target)
    with pytest.raises(tw.Invalid, match="does not name n"):
        triton.compile(triton.compiler.ASTSource(add_one, {"x": "*fp32"}, {"BLOCK": 16}))
    with pytest.raises(tw.Invalid, match="'q7' is unknown"):
        triton.compile(triton.compiler.ASTSource(add_one, {"x": "q7", "n": "i32"}, {"BLOCK": 16}))


# ---- scripts that know GPUs only


def test_a_backend_by_name(on_cpu, monkeypatch):
    target = on_cpu.runtime.driver.active.get_current_target
    assert target().backend == "cpu" and torch.cuda.get_device_capability() == (8, 0)
    monkeypatch.setenv("TILEWRIGHT_TRITON_BACKEND", "cuda:90")
    assert (target().backend, target().arch) == ("cuda", 90)
    assert torch.cuda.get_device_capability() == (9, 0)
    monkeypatch.setenv("TILEWRIGHT_TRITON_BACKEND", "hip:gfx950")
    assert (target().backend, target().arch) == ("hip", "gfx950")
    monkeypatch.setenv("TILEWRIGHT_TRITON_BACKEND", "vulkan")
    with pytest.raises(tw.Invalid, match="cuda:90"):
        target()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_layer_norms_are_rounded_once(on_cpu, dtype):
    torch.manual_seed(0)
    x, dy = torch.randn(700, 64).to(dtype), torch.randn(700, 64).to(dtype)
    w, b = torch.rand(2, 64).to(dtype)
    for v in (x, w, b):
        v.requires_grad_()
    torch.nn.functional.layer_norm(x, (64,), w, b).backward(dy)
    exact = [v.detach().double().requires_grad_() for v in (x, w, b)]
    torch.nn.functional.layer_norm(exact[0], (64,), *exact[1:]).backward(dy.double())
    for v, e in zip((x, w, b), exact, strict=True):
        assert v.grad is not None and e.grad is not None
        off = (v.grad.double() - e.grad).abs() / e.grad.abs().clamp_min(1e-3)
        assert off.max() < torch.finfo(dtype).eps


def test_a_layer_norm_without_weights_or_gradients(on_cpu):
    x = torch.randn(4, 8).half()
    y = torch.nn.functional.layer_norm(x.requires_grad_(), (8,))
    y.sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float16
    with torch.no_grad():
        assert torch.equal(torch.nn.functional.layer_norm(x, (8,)), y)


def test_profiles_of_scopes(triton, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    profiler = importlib.import_module("triton.profiler")
    viewer = importlib.import_module("triton.profiler.viewer")
    session = profiler.start("profile", hook="triton")
    with profiler.scope("outer"):
        for _ in range(3):
            with profiler.scope("inner", {"flops16": 2e9, "bytes": 10}):
                pass
    profiler.deactivate(session)
    with profiler.scope("unseen"):
        pass
    profiler.activate()
    profiler.finalize()
    tree, metrics = viewer.parse(["count", "tflop16/s", "time/ms"], "profile.hatchet")
    viewer.print_tree(tree, metrics)
    shown = capsys.readouterr().out
    assert "inner  count 3.000" in shown and "unseen" not in shown
    inner = tree.children["outer"].children["inner"]
    assert inner.metrics == {"flops16": 6e9, "bytes": 30.0} and inner.seconds > 0
    with pytest.raises(tw.Invalid, match="no profile 5"):
        profiler.deactivate(5)
    with pytest.raises(tw.Invalid, match="no profile missing"):
        viewer.parse([], "missing.hatchet")


def test_launches_that_depend_on_launches():
    import tilewright.language as tl

    @tw.jit
    def add_one(x):
        tl.extra.cuda.gdc_wait()
        value = tl.load(x) + 1
        tl.extra.cuda.gdc_launch_dependents()
        tl.store(x, value)

    x = torch.zeros(1)
    for _ in range(3):
        add_one[(1,)](x, launch_pdl=True)
    assert x.item() == 3
