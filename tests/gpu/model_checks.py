"""Whole models on a GPU: `tw.compile` and `torch.compile(backend="tilewright")` of CUDA tensors."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tests.driver.outside import outside
from tests.gpu.timing import host_seconds, medians
from tilewright.base.errors import TilewrightError
from tilewright.bench.catalog import GPU_MODELS
from tilewright.bench.example import Example

Found = dict[str, Any]
TINY = ("mlp", "bert", "gpt2", "vit", "llama", "llama_decode1", "resnet50", "mobilenetv2", "t5")
FULL = ("mlp", "vit", "llama", "llama_decode1", *GPU_MODELS)
SHORT = {torch.float32: "f32", torch.bfloat16: "bf16"}


def _build(name: str, tiny: bool, dtype: torch.dtype) -> Example:
    from tilewright.bench.models import build  # needs Hugging Face's transformers

    found = build(name, tiny, dtype)
    return Example(found.module.cuda(), tuple(x.cuda() for x in found.inputs))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x


def _other(x: torch.Tensor) -> torch.Tensor:
    """Another input of the same kind, elsewhere in memory."""
    return x.flip(-1).contiguous()


def judged(got: Any, exact: Any, eager: Any) -> float:
    """The largest error, as a part of what is allowed: twice eager's own and four units in the last
    place of the largest value."""
    worst = 0.0
    for x, y, e in zip(_tensors(got), _tensors(exact), _tensors(eager), strict=True):
        assert x.dtype == e.dtype and x.shape == e.shape and x.device == e.device
        assert x.stride() == e.stride(), f"strides {x.stride()}, eager's are {e.stride()}"
        x, y, theirs = x.double(), y.double(), (e.double() - y.double()).abs().max()
        assert bool(torch.isfinite(x).all()), "results are not finite"
        allowed = 2 * theirs + 4 * torch.finfo(e.dtype).eps * y.abs().max()
        worst = max(worst, float((x - y).abs().max() / allowed))
    assert worst <= 1, f"the error is {worst:.2f} of what is allowed"
    return worst


def _tensors(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else list(x)


def model(
    name: str, tiny: bool, dtype: torch.dtype, inductor: bool, one_kernel: bool = False
) -> Found:
    """Right by float64 on several inputs, then timed beside eager and Inductor with CUDA graphs."""
    torch._dynamo.reset()  # or inputs of another model of the same class would be of any size
    ex = _build(name, tiny, dtype)
    wide = copy.deepcopy(ex.module).double()
    fast = tw.compile(ex.module, one_kernel=one_kernel)
    began = time.perf_counter()
    fast(*ex.inputs)
    torch.cuda.synchronize()
    compiling = time.perf_counter() - began
    worst = 0.0
    others = tuple(map(_other, ex.inputs))
    for ins in (ex.inputs, others, ex.inputs, others):
        exact = wide(*map(_wide, ins))
        worst = max(worst, judged(fast(*ins), exact, ex.module(*ins)))
    told = tw.explain(fast)
    programs = [p for u in fast.units for p in u.programs]
    ours: list[Callable[[], object]] = [lambda: fast(*ex.inputs), lambda: fast(*others)]
    eager: list[Callable[[], object]] = [lambda: ex.module(*ex.inputs), lambda: ex.module(*others)]
    contenders = {"ours": ours, "eager": eager}
    if inductor:
        peer = torch.compile(ex.module, mode="reduce-overhead")
        contenders["inductor"] = [lambda: peer(*ex.inputs), lambda: peer(*others)]
    t = medians(contenders, 10)
    found: Found = {
        "us": t["ours"] * 1e6,
        "eager": t["eager"] / t["ours"],
        "error": worst,
        "host_us": host_seconds(ours[0], 50) * 1e6,
        "facts": f"{len(told.fallbacks)} fallbacks, compiled in {compiling:.1f} s, "
        + ", ".join(f"{sum(k.calls for k in p.kernels)} kernels" for p in programs),
    }
    if inductor:
        found["inductor"] = t["inductor"] / t["ours"]
    assert not told.fallbacks, [str(e) for e in told.fallbacks]
    return found


class Net(nn.Module):
    """A small network with convolutions, a norm, a table and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 16)
        self.first = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8 + 16, 10)

    def forward(self, image: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(image))).mean((2, 3))
        return self.last(torch.cat([x, self.table(at)], 1)).log_softmax(1)


def _net(batch: int = 6) -> tuple[Net, torch.Tensor, torch.Tensor]:
    net = Net().cuda()
    return net, torch.randn(batch, 3, 12, 12).cuda(), torch.randint(0, 17, (batch,)).cuda()


def gradients() -> Found:
    """A training step by torch.compile: the loss, all gradients, statistics of the norm."""
    net, image, at = _net()
    other, exact = copy.deepcopy(net), copy.deepcopy(net).double()
    with torch.enable_grad():
        fast = torch.compile(net, backend="tilewright")
        names = ["the loss", *(name for name, _ in net.named_parameters())]
        for turn in range(20):
            results = []
            for m, f in ((net, fast), (other, other), (exact, exact)):
                m.zero_grad()
                x = image.double() if m is exact else image
                loss = F.nll_loss(f(x, at), at % 10)
                loss.backward()
                grads = [p.grad.clone() for p in m.parameters() if p.grad is not None]
                results.append([loss.detach(), *grads])
            for name, x, e, y in zip(names, *results, strict=True):
                ours, theirs = (float((v.double() - y).abs().max()) for v in (x, e))
                scale = float(y.abs().max())
                assert ours <= 4 * theirs + 1e-5 * scale + 1e-7, (
                    f"turn {turn}, {name}: error {ours:.2e}, eager's {theirs:.2e}, "
                    f"largest value {scale:.2e}"
                )
            image = torch.randn_like(image)
        torch.testing.assert_close(net.norm.running_var, other.norm.running_var)
    return {}


def dynamic() -> Found:
    """One compilation for several sizes of a batch."""
    net, *_ = _net()
    net.eval()
    fast = tw.compile(net, dynamic=True)
    for batch in (6, 9, 33, 6, 9, 33, 9):
        _, image, at = _net(batch)
        torch.testing.assert_close(fast(image, at), net(image, at), rtol=1e-4, atol=1e-5)
    return {"facts": f"{sum(len(u.programs) for u in fast.units)} programs"}


def wrong_index() -> Found:
    """The error of a call with a wrong index comes at a later call, in eager's words; the GPU
    stays usable."""
    table = nn.Embedding(10, 8).cuda()
    fast = tw.compile(lambda at: table(at) + 1)
    right = torch.tensor([1, 2], device="cuda")
    want = table(right) + 1
    assert torch.equal(fast(right), want)
    fast(torch.tensor([1, 10], device="cuda"))
    torch.cuda.synchronize()
    try:
        fast(right)
    except (IndexError, RuntimeError) as problem:
        said = str(problem)
    else:
        raise AssertionError("nothing was said about a wrong index")
    for _ in range(3):
        assert torch.equal(fast(right), want)
    return {"facts": said.splitlines()[0]}


def side_streams() -> Found:
    """Two streams at once, and a CUDA graph of torch's own."""
    net, image, at = _net()
    net.eval()
    fast = tw.compile(net, image, at)
    images = [torch.randn_like(image) for _ in range(8)]
    want = [net(x, at) for x in images]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    got = []
    for k, x in enumerate(images * 4):
        with torch.cuda.stream(streams[k % 2]):
            got.append(fast(x, at))
    torch.cuda.synchronize()
    for k, x in enumerate(got):
        torch.testing.assert_close(x, want[k % 8], rtol=1e-4, atol=1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(image, at)
    image.copy_(images[3])
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, want[3], rtol=1e-4, atol=1e-5)
    return {}


def host_calls() -> Found:
    """Operators that stay torch's, between native segments; numbers of the CPU; odd addresses."""
    scale = torch.tensor(3.0)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * scale
        return (outside(y[:, :4] * 0.1) + y[:, :4]).softmax(-1)

    fast = tw.compile(f)
    for _ in range(3):
        x = torch.randn(4, 9, device="cuda")
        torch.testing.assert_close(fast(x), f(x))
        flat = torch.randn(37, device="cuda")[1:].view(4, 9)  # not at a multiple of 16 bytes
        torch.testing.assert_close(fast(flat), f(flat))
    assert len(tw.explain(fast).fallbacks) == 1
    return {"facts": str(tw.explain(fast).fallbacks[0])}


def other_device() -> Found:
    """A tensor of the CPU beside those of the GPU."""
    weights = torch.randn(4, 4)
    fast = tw.compile(lambda x: x @ weights)
    try:
        fast(torch.randn(3, 4, device="cuda"))
    except (TilewrightError, RuntimeError) as problem:
        return {"facts": str(problem).splitlines()[0]}
    raise AssertionError("nothing was said about a tensor on the CPU")


def compiled_loss(dtype: torch.dtype, reduction: str) -> Found:
    """A cross entropy with checks of its labels, as users call it: one launch, beside a copy."""
    torch._dynamo.reset()

    def loss(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.cross_entropy(wide, at, reduction=reduction)

    sets = [
        (torch.randn(8192, 4096, device="cuda").to(dtype), torch.randint(4096, (8192,)).cuda())
        for _ in range(4)
    ]
    with torch.no_grad():
        fast = tw.compile(loss)
        (x, at), *_ = sets
        error = judged(fast(x, at), loss(x.double(), at), loss(x, at))
        kernels = sum(p.calls for p in tw.explain(fast).programs)
        assert kernels == 1, f"{kernels} kernels"
        wrong = at.clone()
        wrong[5] = 4096
        fast(x, wrong)
        try:
            tw.synchronize(fast)
            raise AssertionError("nothing was said of labels that are out of bounds")
        except IndexError as told:
            assert "Target 4096 is out of bounds" in str(told)
        source = [torch.empty(x.nbytes // 2, dtype=torch.uint8, device="cuda") for _ in range(4)]
        into = torch.empty_like(source[0])
        t = medians(
            {
                "ours": [lambda x=x: fast(*x) for x in sets],
                "eager": [lambda x=x: loss(*x) for x in sets],
                "copy": [lambda x=x: into.copy_(x) for x in source],
            }
        )
    return {
        "us": t["ours"] * 1e6,
        "of_copy": t["copy"] / t["ours"],
        "eager": t["eager"] / t["ours"],
        "error": error,
        "host_us": host_seconds(lambda: fast(x, at)) * 1e6,
    }


def model_checks(inductor: bool) -> Iterator[tuple[str, Callable[[], Found]]]:
    for f in (gradients, dynamic, wrong_index, side_streams, host_calls, other_device):
        yield f"graph {f.__name__}", f
    for d in (torch.bfloat16, torch.float32):
        for how in ("none", "mean"):
            title = f"compiled cross_entropy {how} {SHORT[d]} 8192x4096"
            yield title, lambda d=d, how=how: compiled_loss(d, how)
    for name in TINY:
        for d in (torch.float32, torch.bfloat16):
            yield f"tiny {name} {SHORT[d]}", lambda n=name, d=d: model(n, True, d, False)
    for name in FULL:
        yield (
            f"model {name} bf16",
            lambda n=name: model(n, False, torch.bfloat16, inductor),
        )
