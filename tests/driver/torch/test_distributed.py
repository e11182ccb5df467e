"""Two processes that train one model: what is compiled inside torch's wrappers, or around them."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import tilewright as tw

STEPS = 3
BUCKET = 1.1  # megabytes: torch wants at least one of them, and the gradients are in several


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * step + rank))


def train(call: Any, parameters: list[nn.Parameter], batches: Any) -> None:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for given in batches:
        optimizer.zero_grad()
        call(given).square().mean().backward()
        optimizer.step()


def data_parallel(around: bool) -> tuple[Any, nn.Module]:
    own = model()
    if around:
        wrapped = DistributedDataParallel(own, bucket_cap_mb=BUCKET)
        return tw.compile(wrapped), own
    inside = torch.compile(own, backend="tilewright")
    return DistributedDataParallel(inside, bucket_cap_mb=BUCKET), own


def sharded(around: bool) -> tuple[Any, nn.Module]:
    own = model()
    mesh = init_device_mesh("cpu", (2,))
    for layer in own:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(own, mesh=mesh)
    if around:
        return tw.compile(own), own
    for layer in own:
        layer.compile(backend="tilewright")
    return own, own


def work(rank: int, folder: str, wrap: str, around: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        call, own = {"ddp": data_parallel, "fsdp": sharded}[wrap](around)
        train(call, list(own.parameters()), [batch(k, rank) for k in range(STEPS)])
        found = [p.full_tensor() if isinstance(p, DTensor) else p for p in own.parameters()]
        if rank == 0:
            torch.save([p.detach().clone() for p in found], f"{folder}/parameters")
    except BaseException:
        Path(f"{folder}/failed{rank}").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("around", [True, False])
@pytest.mark.parametrize("wrap", ["ddp", "fsdp"])
def test_two_processes_train_as_one(wrap: str, around: bool, tmp_path: Path) -> None:
    mp.spawn(work, (str(tmp_path), wrap, around), nprocs=2)
    exact = model().double()
    together = [torch.cat([batch(k, r) for r in range(2)]).double() for k in range(STEPS)]
    train(exact, list(exact.parameters()), together)
    for p, q in zip(torch.load(tmp_path / "parameters"), exact.parameters(), strict=True):
        torch.testing.assert_close(p, q.float())
