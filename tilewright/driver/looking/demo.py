"""`tilewright demo`: a real model with random weights, compiled, checked and compared with
eager."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tilewright.base import knobs
from tilewright.base.errors import Invalid, MissingExtra
from tilewright.driver.api import torch_side
from tilewright.driver.looking.explain import bytes_text

_COMPARE = "tilewright.driver.looking.compare"
ROUNDS = 11


@dataclass(frozen=True)
class Model:
    """A model of transformers: what it is, and how to build it with its inputs."""

    about: str
    build: Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]


def _bert(torch: Any, hf: Any) -> tuple[Any, tuple[Any, ...]]:
    inner = hf.BertModel(hf.BertConfig()).eval()
    ids = torch.randint(3, inner.config.vocab_size, (1, 128))
    return _picked(torch, inner, "input_ids", "last_hidden_state"), (ids,)


def _resnet(kind: str, **sizes: Any) -> Callable[[Any, Any], tuple[Any, tuple[Any, ...]]]:
    def build(torch: Any, hf: Any) -> tuple[Any, tuple[Any, ...]]:
        config = hf.ResNetConfig(layer_type=kind, num_labels=1000, **sizes)
        inner = hf.ResNetForImageClassification(config).eval()
        for part in inner.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                # Fresh statistics are 0 and 1, with which folding could do nothing wrong.
                torch.nn.init.normal_(part.running_mean, std=0.1)
                torch.nn.init.uniform_(part.running_var, 0.5, 1.5)
        return _picked(torch, inner, "pixel_values", "logits"), (torch.randn(1, 3, 224, 224),)

    return build


def _tiny(torch: Any, hf: Any) -> tuple[Any, tuple[Any, ...]]:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.BertConfig(intermediate_size=128, vocab_size=1000, **sizes)
    inner = hf.BertModel(config).eval()
    ids = torch.randint(3, 1000, (1, 32))
    return _picked(torch, inner, "input_ids", "last_hidden_state"), (ids,)


MODELS = {
    "bert": Model("BERT-base, 128 tokens", _bert),
    "resnet18": Model(
        "ResNet-18, one image of 224 x 224",
        _resnet("basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512]),
    ),
    "resnet50": Model("ResNet-50, one image of 224 x 224", _resnet("bottleneck")),
    "tiny": Model("a BERT of two small layers, 32 tokens", _tiny),
}
DEFAULT = "resnet18"


def _picked(torch: Any, inner: Any, argument: str, result: str) -> Any:
    """The model as a module from one tensor to one tensor."""

    class Picked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return getattr(self.inner(**{argument: x}), result)

    return Picked().eval()


def demo(name: str = DEFAULT, rounds: int = ROUNDS, console: Console | None = None) -> bool:
    """Show what compiling brings for a real model; False where the result is not right."""
    console = console or Console()
    if name not in MODELS:
        raise Invalid(f"there is no demo model {name!r}", hint=f"known are {', '.join(MODELS)}")
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise MissingExtra("demo", f"tilewright demo ({package})")
    chosen = MODELS[name]
    console.print(f"[bold]{chosen.about}[/], random weights, float32, inference")
    torch, hf, compare = torch_side("torch", "demo"), *_late()
    torch.manual_seed(0)
    with shown(console, "building the model"):
        module, inputs = chosen.build(torch, hf)
    # Cold means cold: nothing that an earlier run left behind is used.
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-demo-") as empty,
        knobs.cache_dir.override(Path(empty)),
    ):
        step = lambda text: shown(console, text)  # noqa: E731
        found = compare.compare(module, inputs, strict=True, rounds=rounds, step=step)
    console.print()
    console.print(comparison_table(found))
    console.print(verdict(found))
    return found.error.right


def _late() -> tuple[Any, Any]:
    return torch_side("transformers", "demo"), torch_side(_COMPARE, "demo")


@contextmanager
def shown(console: Console, text: str) -> Iterator[None]:
    """A line for something that takes a while: a spinner while it runs, its time afterwards."""
    began = perf_counter()
    columns = SpinnerColumn(), TextColumn("{task.description} …"), TimeElapsedColumn()
    # Lines that are drawn again and again belong on terminals only.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as p:
        p.add_task(text)
        yield
    console.print(f"  {text:<28}{perf_counter() - began:8.1f} s", highlight=False)


def comparison_table(c: Any) -> Table:
    """What `torch_compare.compare` found."""
    table = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name, side in (("", "left"), ("eager", "right"), ("tilewright", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    programs = c.explanation.programs
    parts = f"{c.own_seconds:.1f} s without capture"
    table.add_row("cold compile", "", f"{c.compile_seconds:.1f} s ({parts})")
    table.add_row("time per call", milliseconds(c.eager), milliseconds(c.ours))
    table.add_row("speedup", "1.00×", f"{c.speedup:.2f}×")
    arena = sum(p.arena if isinstance(p.arena, int) else 0 for p in programs)
    table.add_row("memory of a call", bytes_text(c.eager_peak), bytes_text(arena + c.result_bytes))
    table.add_row(
        "folded and packed weights", "", bytes_text(sum(p.folded_bytes for p in programs))
    )
    table.add_row("largest error", f"{c.error.eager:.2e}", f"{c.error.ours:.2e}")
    once, calls = sum(p.once for p in programs), sum(p.calls for p in programs)
    distinct = len(c.explanation.kernels) - once
    table.add_row("kernels", "", f"{distinct} distinct, {calls} calls per run")
    table.add_row("kernels that pack weights, once", "", str(once))
    table.add_row("fallbacks to eager", "", str(len(c.explanation.fallbacks)))
    return table


def verdict(c: Any) -> Text:
    """Right or wrong, in one line."""
    if c.error.right:
        text = "right: the error against float64 is at most twice eager's own + 4 ulp"
        return Text(text, style="green")
    return Text(f"wrong: {c.error.problem}", style="bold red")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.1f} µs"
