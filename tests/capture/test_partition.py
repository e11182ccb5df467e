"""What a forward graph keeps for its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn import functional as F

from tilewright import targets
from tilewright.capture.torch.kept_values import bytes_of
from tilewright.capture.torch.masks import masks_in_order
from tilewright.capture.torch.partition import Partition

Function = Callable[..., torch.Tensor]


def boxed(gm: torch.fx.GraphModule, _: Any) -> Any:
    return make_boxed_func(gm)


def parted(forward: Callable[..., Any] = boxed, share: float = 1.0) -> Callable[..., Any]:
    partition = Partition(targets.default(), share=share)
    return aot_autograd(fw_compiler=forward, bw_compiler=boxed, partition_fn=partition)


def kept(f: Function, *args: torch.Tensor, share: float = 1.0) -> list[torch.fx.Node]:
    """What the forward graph of a function hands to its gradient, which is that of eager."""
    found: list[torch.fx.Node] = []

    def forward(gm: torch.fx.GraphModule, _: Any) -> Any:
        _, *rest = gm.graph.output_node().all_input_nodes
        found.extend(x for x in rest if not x.name.startswith("copy_"))
        return make_boxed_func(gm)

    torch._dynamo.reset()
    results = []
    options: Any = {"activation_memory": share}  # torch's annotation knows no floats
    native = torch.compile(f, backend="tilewright", options=options)
    for g in (torch.compile(f, backend=parted(forward, share)), native, f):
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in args]
        g(*given).square().sum().backward()
        results.append([x.grad for x in given])
    for ours, native, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(native, theirs, rtol=1e-4, atol=1e-4)
    return found


def test_constants_are_made_again() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = x.shape[-1]
        seen = (torch.arange(n)[:, None] >= torch.arange(n)).expand(2, n, n)
        return torch.where(seen, x.sin(), -1.0) * torch.arange(n)

    names = [n.name for n in kept(f, torch.randn(2, 4, 4, requires_grad=True))]
    assert names == ["primals_1"]


def test_views_are_made_again() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w).view(2, 3, 2, 4).transpose(1, 2)
        return y.tanh() @ y.transpose(-1, -2)

    found = kept(f, torch.randn(2, 3, 5, requires_grad=True), torch.randn(8, 5, requires_grad=True))
    assert not [n.name for n in found if n.target in (torch.ops.aten.permute.default,)]
    assert all(n.op == "placeholder" or "view" not in n.name for n in found)


def test_what_is_done_element_by_element_is_made_again() -> None:
    """Of a chain of maps one value is kept, at its beginning."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.tanh()
        return 0.5 * y * (1 + torch.tanh(0.8 * (y + 0.04 * y.pow(3))))

    (found,) = kept(f, torch.randn(64, 32, requires_grad=True))
    assert found.name in ("primals_1", "tanh")


def test_what_a_batch_norm_gives_is_made_again() -> None:
    """The sine's gradient reads its operand, a map of what the norm's gradient reads anyway."""

    def f(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, var: torch.Tensor
    ) -> torch.Tensor:
        return F.batch_norm(x, mean, var, w, b, training=True).sin()

    images = torch.randn(8, 4, 16, 16, requires_grad=True)
    scale, shift = (torch.rand(4, requires_grad=True) for _ in range(2))
    found = kept(f, images, scale, shift, torch.zeros(4), torch.ones(4))
    assert [n.name for n in found if bytes_of(n) == images.nbytes] == ["sin", "primals_1"]


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = F.gelu(F.linear(x, w)) + x
    return x


def test_fewer_bytes_are_kept_where_they_are_asked_for() -> None:
    """Results of products too, and no more of them than needed."""
    args = [torch.randn(64, 48, requires_grad=True)]
    args += [(torch.randn(48, 48) / 7).requires_grad_() for _ in range(4)]
    sizes = []
    for share in (1.0, 0.5, 0.25):
        found = [n for n in kept(layers, *args, share=share) if n.op != "placeholder"]
        sizes.append(sum(bytes_of(n) for n in found))
    assert sizes[0] // 4 < sizes[1] <= sizes[0] // 2 and 0 < sizes[2] <= sizes[0] // 4


def test_dropout_is_made_again_from_its_mask() -> None:
    """Its result is not kept where its operand is there, and the mask is drawn once."""
    found: list[torch.fx.Node] = []

    def forward(gm: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(gm.graph.output_node().all_input_nodes[1:])
        return make_boxed_func(gm)

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5).square()

    torch._dynamo.reset()
    x = torch.ones(64, 32, requires_grad=True)
    y = torch.compile(f, backend=parted(forward))(x)
    y.sum().backward()
    assert x.grad is not None and 0 < int((y > 0).sum()) < x.numel()
    torch.testing.assert_close(x.grad, 2 * y.detach())
    assert {n.meta["val"].dtype for n in found if n.op != "placeholder"} == {torch.bool}


def test_what_a_call_changes_is_kept_as_it_was() -> None:
    def f(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        y = x * count.clone().view(1, -1)
        count.add_(1)
        return y

    kept(f, torch.randn(3, 4, requires_grad=True), torch.randn(4))


def test_random_numbers_are_drawn_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * torch.rand(4)

    torch.manual_seed(0)
    x = torch.randn(4, requires_grad=True)
    y = torch.compile(f, backend=parted())(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.sin().detach(), y.detach() * x.cos().detach())


def test_masks_that_are_the_same_for_all_keys() -> None:
    """Torch's kernels of a GPU see neighbouring elements; results are as they were."""

    def f(x: torch.Tensor) -> torch.Tensor:
        seen = (torch.arange(5)[:, None] >= 1).expand(2, 1, 5, 5)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=seen)

    found: list[tuple[int, ...]] = []

    def look(gm: torch.fx.GraphModule, _: Any) -> Any:
        masks_in_order(gm)
        for n in gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention):
            mask = n.kwargs["attn_mask"]
            assert isinstance(mask, torch.fx.Node) and mask.target == "contiguous"
            found.append(mask.meta["example_value"].stride())
        return gm.forward

    x = torch.randn(2, 3, 5, 8)
    torch._dynamo.reset()
    got = torch.compile(f, backend=look)(x)
    torch.testing.assert_close(got, f(x), equal_nan=True)
    assert found == [(25, 25, 5, 1)]
