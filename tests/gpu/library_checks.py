"""Libraries as candidates on a GPU, training steps with their speed, errors of a process's last
call."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tests.gpu.timing import host_seconds, medians
from tilewright.base.errors import Refused
from tilewright.driver.torch.devices import machine_of
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import parse_group

Found = dict[str, Any]
LIBRARY = Choices(library=True)


class Product(nn.Module):
    """A linear layer and a gelu."""

    def __init__(self, deep: int, columns: int) -> None:
        super().__init__()
        self.layer = nn.Linear(deep, columns)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.layer(x), approximate="tanh")


class Convolution(nn.Module):
    """A convolution and a relu."""

    def __init__(self, channels: int, results: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, results, kernel, stride, kernel // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x))


def with_library(module: nn.Module, x: torch.Tensor) -> Any:
    """The module with every product and convolution by a library, whatever is faster."""
    first = tw.compile(module, x, choose="default")
    target = machine_of(x.device).target
    traces: dict[str, str] = {}
    for k in tw.explain(first).kernels:
        try:
            traces[k.symbol] = print_trace(
                default_schedule(parse_group(k.group), target, LIBRARY)[0]
            )
        except Refused:  # no product
            continue
    assert traces, "no kernel of it is a library's"
    return tw.compile(module, x, schedules=traces)


def judged(got: torch.Tensor, module: nn.Module, x: torch.Tensor) -> float:
    """The error as a part of what is allowed: twice eager's, and four units in the last place."""
    import copy

    exact = copy.deepcopy(module).double()(x.double())
    theirs = (module(x).double() - exact).abs().max()
    allowed = 2 * theirs + 4 * torch.finfo(x.dtype).eps * exact.abs().max()
    error = float((got.double() - exact).abs().max() / allowed)
    assert error <= 1, f"the error is {error:.2f} of what is allowed"
    return error


def candidate(module: nn.Module, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Found:
    """Right by a library inside a graph, at other addresses too; then what was measured and chosen,
    beside both alone and eager."""
    module = module.to("cuda", dtype).eval()
    inputs = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(6)]
    forced = with_library(module, inputs[0])
    worst = 0.0
    for _ in range(2):
        for x in inputs:
            worst = max(worst, judged(forced(x), module, x))
        # What others do to a library's working memory must not matter to graphs that use it.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.randn(1 << 26, device="cuda")
    ours, chosen = tw.compile(module, choose="default"), tw.compile(module)
    worst = max(worst, judged(chosen(inputs[0]), module, inputs[0]))
    told = tw.explain(chosen)
    calls = {"ours": ours, "library": forced, "chosen": chosen, "eager": module}
    t = medians({name: [lambda f=f, x=x: f(x) for x in inputs[:2]] for name, f in calls.items()})
    return {
        "us": t["chosen"] * 1e6,
        "eager": t["eager"] / t["chosen"],
        "error": worst,
        "host_us": host_seconds(lambda: forced(inputs[0])) * 1e6,
        "facts": f"ours {t['ours'] * 1e6:.1f} us, library {t['library'] * 1e6:.1f}; "
        + "; ".join(told.considered(k) for k in range(len(told.kernels)) if told.considered(k)),
    }


def library_streams() -> Found:
    """Programs that call libraries, on two streams at once: each has working memory of its own."""
    module = Product(512, 512).to("cuda", torch.bfloat16).eval()
    inputs = [torch.randn(384, 512, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    fast = with_library(module, inputs[0])
    want = [module(x) for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    got = []
    for k, x in enumerate(inputs * 6):
        with torch.cuda.stream(streams[k % 2]):
            got.append(fast(x))
    torch.cuda.synchronize()
    for k, y in enumerate(got):
        torch.testing.assert_close(y, want[k % 8], rtol=2e-2, atol=2e-2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fast(inputs[0])
    inputs[0].copy_(inputs[3])
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, want[3], rtol=2e-2, atol=2e-2)
    return {}


LAST_CALL = """
import torch, tilewright as tw
table = torch.randn(5, 4, device="cuda")
fast = tw.compile(lambda at: table[at] * 2)
for k in (1, 2, 5):
    fast(torch.tensor([0, k], device="cuda"))
"""


def last_call() -> Found:
    """A wrong index in the last call of a process is said when it ends."""
    found = subprocess.run([sys.executable, "-c", LAST_CALL], capture_output=True, text=True)
    said = [line for line in found.stderr.splitlines() if "an earlier call" in line]
    assert found.returncode == 0 and len(said) == 1, found.stderr[-2000:]
    return {"facts": said[0]}


def training(
    build: Callable[[torch.device], tuple[nn.Module, tuple[Any, ...]]], inductor: bool
) -> Found:
    """Forward and backward of a loss: gradients by eager's in float64, then the time of a step."""
    import copy

    torch._dynamo.reset()  # or inputs of another model of the same class would be of any size
    with torch.enable_grad():
        module, inputs = build(torch.device("cuda"))
        fast = torch.compile(module, backend="tilewright", options={"strict": True})
        exact = copy.deepcopy(module).double()
        wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        worst = 0.0
        grads = []
        for m, f, given in ((module, module, inputs), (module, fast, inputs), (exact, exact, wide)):
            for _ in range(3):  # the first step compiles, later ones replay graphs
                m.zero_grad(set_to_none=True)
                loss_of(f(*given)).backward()
            # What the loss does not use has no gradient in eager, and zeros where it is compiled.
            grads.append([_gradient(p) for p in m.parameters()])
        # Weight and bias of a layer are judged by the larger of their gradients: that of the bias
        # of attention's keys is 0, and what is computed of it are rounding errors.
        owners = [name.rpartition(".")[0] for name, _ in module.named_parameters()]
        scales: dict[str, float] = {}
        for owner, want in zip(owners, grads[2], strict=True):
            scales[owner] = max(scales.get(owner, 0.0), float(want.abs().max()))
        for owner, theirs, ours, want in zip(owners, *grads, strict=True):
            units = 4 * torch.finfo(torch.bfloat16).eps * scales[owner]
            allowed = 2 * float((theirs - want).abs().max()) + units
            worst = max(worst, float((ours - want).abs().max()) / (allowed + 1e-12))

        def step(f: Callable[..., Any]) -> Callable[[], object]:
            def run() -> None:
                module.zero_grad(set_to_none=True)
                loss_of(f(*inputs)).backward()

            return run

        contenders = {"ours": step(fast), "eager": step(module)}
        if inductor:
            contenders["inductor"] = step(torch.compile(module, mode="reduce-overhead"))
        t = in_a_row(contenders)
    assert worst <= 1, f"the error of a gradient is {worst:.2f} of what is allowed"
    found = {"us": t["ours"] * 1e6, "eager": t["eager"] / t["ours"], "error": worst}
    return {**found, **({"inductor": t["inductor"] / t["ours"]} if inductor else {})}


def in_a_row(
    contenders: Mapping[str, Callable[[], object]], steps: int = 8, rounds: int = 5
) -> dict[str, float]:
    """Seconds of a step, of several in a row, as training has them: the median of some rounds in
    which contenders take turns. The first steps of a round, which find memory used by others, do
    not count."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            for _ in range(6):
                step()
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                step()
            torch.cuda.synchronize()
            found[name].append((time.perf_counter() - began) / steps)
    return {name: statistics.median(x) for name, x in found.items()}


def _gradient(p: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(p).double() if p.grad is None else p.grad.double()


def loss_of(results: Any) -> torch.Tensor:
    """No mean of squares: behind a norm that is constant, and its gradient rounding errors."""
    x = results[0] if isinstance(results, (tuple, list)) else results
    return x.float().square().square().mean()


def bert_step(on: torch.device, batch: int = 16) -> tuple[nn.Module, tuple[Any, ...]]:
    from tilewright.bench.models import bert_of

    made = bert_of(False, batch)
    module = made.module.to(on, torch.bfloat16).eval()  # without dropout: eager's is random
    return module, tuple(x.to(on) for x in made.inputs)


def convolutions_step(on: torch.device, batch: int = 16) -> tuple[nn.Module, tuple[Any, ...]]:
    from tilewright.bench.models import resnet50_of

    made = resnet50_of(False, batch)
    module = made.module.to(on, torch.bfloat16).train()
    return module, tuple(x.to(on, torch.bfloat16) for x in made.inputs)


def library_checks(inductor: bool) -> Iterator[tuple[str, Callable[[], Found]]]:
    for rows, deep, columns in ((128, 768, 3072), (4096, 768, 768), (1, 2048, 8192)):
        yield (
            f"library product {rows}x{deep}x{columns}",
            lambda r=rows, d=deep, c=columns: candidate(Product(d, c), r, d),
        )
    for batch, c, o, size, k, s in (
        (1, 64, 64, 56, 3, 1),
        (64, 128, 128, 28, 3, 1),
        (64, 256, 512, 28, 1, 2),
    ):
        yield (
            f"library convolution {batch}x{c}x{size}x{size}, {o} of {k}x{k} by {s}",
            lambda b=batch, c=c, o=o, n=size, k=k, s=s: candidate(
                Convolution(c, o, k, s), b, c, n, n
            ),
        )
    yield (
        "library product f32",
        lambda: candidate(Product(512, 512), 256, 512, dtype=torch.float32),
    )
    yield "library streams", library_streams
    yield "last call", last_call
    yield "training bert b16", lambda: training(bert_step, inductor)
    yield "training resnet50 b16", lambda: training(convolutions_step, inductor)
