"""The statements that random call sequences are made of (`random_calls.py`), by kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol


class Maker(Protocol):
    """Who grows a function: pools of names of values, and how a statement is added to it."""

    random: random.Random
    lines: list[str]
    smooth: list[str]
    whole: list[str]
    numbers: list[str]

    def fresh(self) -> str: ...

    def put(self, text: str, pool: list[str] | None) -> None: ...

    def one(self, pool: list[str]) -> str: ...

    def pick(self, *texts: str) -> str: ...


def plain(m: Maker) -> None:
    text = m.pick(
        "torch.tanh({x})",
        "{x} + {y}",
        "{x} * {y}",
        "torch.sigmoid({x}) - {y}",
        "{x}.sum()",
        "{x}.mean(-1, keepdim=True)",
        "torch.relu({x})",
        "torch.cat([{x}.reshape(-1), {y}.reshape(-1)])",
        "{x}.to(torch.float32)",
        "{w}.to({x}.dtype) * {x}",
        "torch.softmax({x}, -1)",
        "{x}.unsqueeze(0)",
        "{x} @ {y}.mT / 8",
    )
    m.put(text, m.smooth)


def scalars(m: Maker) -> None:
    r = m.random
    if r.random() < 0.25:
        text = m.pick(
            "{n} + {k}",
            "{n} * {k}",
            "{n} // 2",
            "min({n}, {k})",
            "max({n}, 1)",
            "{n} ** 2",
            "{n} % 3",
            "-{n}",
            "{n} / 4",
            "math.sqrt(abs({n}) + 1)",
            "float({n})",
            "int({n})",
            "math.floor({n} / 2)",
            "{x}.shape[0] + {n}",
            "{x}.numel() // 2",
            "{n} * 0.5 + {k}",
            "abs({n})",
            "({n} + 1) // ({k} * {k} + 1)",
            "({n} > {k})",
            "math.exp(-abs({n}))",
            "round({n} / 2)",
        )
        m.put(text, m.numbers)
        return
    text = m.pick(
        "{x} * {n}",
        "{x} + {n}",
        "{n} - {x}",
        "{x} / ({n} * {n} + 1)",
        "{n} / (1 + {x} * {x})",
        "torch.full(({k},), {n}, dtype={x}.dtype) * 1.5",
        "torch.full_like({x}, {n})",
        "{x}[:{k}]",
        "{x}[{n}:]",
        "{x}[-{k}:]",
        "{x}[{n}]",
        "{x}[::{k}] * 2",
        "torch.arange({n}, dtype=torch.float32)",
        "torch.arange({n}, {n} + 10, {k}, dtype=torch.float32)",
        "{x}.reshape(-1)[:12].view({k}, -1)",
        "torch.zeros({n}, {k})",
        "torch.ones({k}) * {n}",
        "{x}.roll({n})",
        "{x}.narrow(0, 0, {k})",
        "torch.clamp({x}, -{k}, {k})",
        "torch.clamp({x}, max={n})",
        "{a}.masked_fill({a} > 0, {n})",
        "torch.where({a} > {n}, {a}, {k})",
        "torch.add({x}, {y}, alpha={n})",
        "torch.lerp({x}, {y}, {n})",
        "torch.eye({k}) * {n}",
        "torch.linspace(0, {n}, {k})",
        "{x}.unsqueeze(0).expand({k}, *{x}.shape)",
        "{x}.repeat({k}, *[1] * ({x}.dim() - 1))",
        "F.pad({x}, ({k}, 0), value={n})",
        "F.pad({x}, (0, {n}))",
        "torch.tensor({n}, dtype=torch.float32) + {x}",
        "{x}.new_full(({k}, 2), {n})",
        "{x}.split({k})[0]",
        "({x} if {n} > 1 else {y}) * 2",
        "sum([{x} * j for j in range({k})], {x})",
        "F.leaky_relu({x}, {n})",
        "F.layer_norm({x}, {x}.shape[-1:], eps=abs({n}) + 0.1)",
        "{x}.tril({n})",
        "{x}.diagonal({n})",
        "torch.addcmul({x}, {x}, {y}, value={n})",
        "{x}.softmax(-1) ** {k}",
        "torch.cumsum({x}, 0) * {n}",
        "{x}.unfold(0, {k}, 1)",
        "torch.stack([{x}] * {k})",
        "{x}.index_select(0, torch.tensor([{n}]))",
        "torch.pow(abs({n}) + 1, {x} / 8)",
        "torch.full(({k}, {x}.shape[0]), {n} * 0.5)",
    )
    m.put(text, m.smooth)


def whole(m: Maker) -> None:
    text = m.pick(
        "torch.pow(2, {w})",
        "2 ** {w}.abs()",
        "3 - {w}",
        "{w} * 3",
        "{w} + 1000",
        "{w} * {z}",
        "-{w}",
        "{w}.abs()",
        "{w} ** 3",
        "{w} // 3",
        "{w} % 3",
        "{w} // -2",
        "{w} % -5",
        "7 // ({w} * 2 + 1)",
        "-7 % ({w} * 2 + 1)",
        "{w} // ({z} * 2 + 1)",
        "{w} << 3",
        "{w} >> 2",
        "{w} << {z}.clamp(0, 3)",
        "1 << {w}.clamp(0, 6)",
        "{w} & 5",
        "{w} ^ 255",
        "~{w}",
        "torch.clamp({w}, -1000, 1000)",
        "torch.clamp({w}, 2)",
        "torch.full_like({w}, 100)",
        "{w}.masked_fill({w} > 0, 7)",
        "{w} + {n}",
        "{n} - {w}",
        "{w} * {n}",
        "torch.where({w} > {n}, {w}, {k})",
        "{w}.sum(0)",
        "{w}.cumsum(0)",
        "torch.maximum({w}, {z})",
        "{w}.to(torch.int64) * (2 ** 40)",
        "{w}.to(torch.int32) * (2 ** 30)",
        "{w} + True",
        "torch.bitwise_left_shift({w}, 70)",
        "torch.bitwise_right_shift({w}, 70)",
        "torch.pow({w}, torch.tensor(2))",
        "torch.full({w}.shape, -1, dtype={w}.dtype)",
        "torch.fmod({w}, 3)",
        "torch.remainder(5, {w} * 2 + 1)",
        "torch.floor_divide({w}, -3)",
        "torch.rsub({w}, 5)",
        "{w}.sign()",
        "{w} == 2.5",
        "{w}.to(torch.bool) + 2",
        "torch.arange({k}) ** {k}",
        "torch.arange(0, 20, {k})",
        "torch.pow(-3, {w}.clamp(0, 4))",
        "torch.pow(0, {w}.clamp(0, 4))",
        "torch.pow(1, {w})",
        "torch.pow(-1, {w})",
        "torch.pow(True, {w}.clamp(0))",
        "torch.scalar_tensor({n}, dtype=torch.int64) + {w}",
        "torch.iinfo(torch.int64).min // torch.tensor([2]) + {w}.sum()",
        "torch.full((2,), torch.iinfo(torch.int64).min).abs()",
    )
    m.put(text, m.whole)
    if m.random.random() < 0.3:
        text = m.pick(
            "1 / ({w} * 2 + 1)",
            "{w} / 4",
            "2.5 - {w}",
            "torch.pow(2.0, {w}.clamp(-3, 3))",
            "{w} * 0.5",
            "float('inf') * ({w} * 0 + 1) * 0 + 1.0",
            "torch.where({w} > 0, float('nan'), 1.0).nan_to_num(2.0)",
            "torch.clamp({x}, float('-inf'), float('inf'))",
            "torch.minimum({x}, torch.tensor(float('inf')))",
            "torch.true_divide({w}, 3)",
            "torch.pow({x}.abs() + 1, 2)",
            "torch.pow(2, {x} / 8)",
        )
        m.put(text, m.smooth)


def in_place(m: Maker) -> None:
    m.lines.append(
        m.pick(
            "{x}.add_(1)",
            "{x}.mul_(0.5)",
            "{x}[1:].mul_(2)",
            "{x}[0] = 1",
            "{x}[..., 0] = {y}[..., 0]",
            "{x}.view(-1).zero_()",
            "{x}.mT.add_(1)",
            "{x}.copy_({y})",
            "{x}.mT.copy_({y})",
            "{x}.fill_({n})",
            "{x}.mul_({n})",
            "{x}.transpose_(0, 1)",
            "{x}.unsqueeze_(0)",
            "{x}.squeeze_()",
            "{x}.clamp_(-1, 1)",
            "{x}.relu_()",
            "{x}[:, 1:].add_({n})",
            "{x}[:1] += {y}[:1]",
            "{a}.masked_fill_({a} > 0, {n})",
            "{w}.add_(1)",
            "{w}[1:] -= 1",
            "{w}.fill_({k})",
            "{x}.detach().mul_(2)",
            "{x}.add_({y})",
            "{x}.sub_({y}, alpha={n})",
            "{x}.flatten()[0:2].zero_()",
            "{x}.diagonal().fill_(1)",
            "{x}.zero_()",
            "{x}.index_fill_(0, torch.tensor([0]), 2)",
            "torch.add({x}, 1, out={y})",
            "{x}.t_()",
            "{w}.bitwise_and_(3)",
            "{x}.resize_(2)",
            "{x}.set_({y})",
            "{x}.data.add_(1)",
            "{x}.normal_().zero_()",
        )
    )


def views(m: Maker) -> None:
    m.put(
        m.pick(
            "{x}[1:]",
            "{x}.mT",
            "{x}.view(-1)",
            "{x}.reshape(-1)",
            "{x}[..., 0]",
            "{x}.expand(2, *{x}.shape)",
            "{x}.unsqueeze(-1)",
            "{x}.as_strided((2,), (1,))",
            "{x}.detach()",
            "{x}.contiguous()",
            "{x}[:]",
            "{x}.flatten()",
            "{x}.chunk(2)[0]",
            "{x}.unbind(0)[0]",
            "{x}.squeeze()",
            "{x}.diagonal()",
            "{x}.to({x}.dtype)",
            "{x}.clone()",
            "{x}.view({x}.shape)",
            "{x}.movedim(0, -1)",
            "{x}.view(torch.uint8).view({x}.dtype)",
            "{x}.T",
            "torch.broadcast_tensors({x}, {y})[0]",
            "{x}.alias() if hasattr({x}, 'alias') else {x}",
            "{x}.T.contiguous()",
            "{x}.contiguous(memory_format=torch.contiguous_format).clone()",
            "torch.empty_like({x}).copy_({x})",
            "{x}.real",
        ),
        m.smooth,
    )


def data(m: Maker) -> None:
    r = m.random
    if r.random() < 0.3:
        text = m.pick(
            "int({i}.sum())",
            "{i}.sum().item()",
            "{i}.max().item()",
            "float({a}.sum())",
            "{a}.sum().item()",
            "int(({a} > 0).sum())",
            "len({i}.nonzero())",
            "({i} > 0).sum().item()",
        )
        m.put(text, m.numbers)
        return
    text = m.pick(
        "{a}[{a} > 0]",
        "{a}.reshape(-1)[({i}.reshape(-1) > 0).nonzero()[:, 0].clamp(max={a}.numel() - 1)]",
        "torch.masked_select({a}, {a} > 0) * 2",
        "{a}.nonzero().to(torch.float32)",
        "{a}.reshape(-1)[:({i} > 0).sum().item()]",
        "torch.unique({i}).to(torch.float32)",
        "torch.zeros(({i} > 0).sum().item())",
        "{x} * {i}.sum().item()",
        "{x} + {a}.sum().item()",
        "torch.arange(({i} > 0).sum().item()).to(torch.float32)",
        "torch.where({a} > 0)[0].to(torch.float32) + 1",
        "torch.full((({i} != 0).sum().item(), 2), 1.5)",
        "{a}.reshape(-1)[{a}.reshape(-1) > 0].sum() + {x}",
        "torch.repeat_interleave({a}.reshape(-1), {i}.reshape(-1).clamp(0, 3))",
        "torch.cat([{a}.reshape(-1)[{a}.reshape(-1) > 0], {x}.reshape(-1)])",
        "{x}.reshape(-1).index_add(0, ({a}.reshape(-1) > 0).nonzero()[:, 0], "
        "{a}[{a} > 0].reshape(-1))",
        "torch.bincount({i}.reshape(-1).clamp(0).to(torch.int64)).to(torch.float32)",
        "torch.split({a}.reshape(-1), {i}.reshape(-1).clamp(0).tolist())[0]",
        "({a}.reshape(-1)[{a}.reshape(-1) > 0]).tanh().sum()",
    )
    m.put(text, m.smooth)


def modes(m: Maker) -> None:
    name = m.fresh()
    text = m.random.choice(
        (
            "with torch.no_grad(): {name} = {x} * 2",
            "with torch.autocast('cpu', torch.bfloat16): {name} = ({x} @ {y}.mT).float()",
            "with torch.enable_grad(): {name} = {x} * 3",
            "{name} = {x}.detach() * {y}",
            "{name} = torch.complex({x}.float(), {y}.float()).abs()",
            "{name} = torch.view_as_complex(torch.stack([{x}, {y}], -1).float()).real",
            "{name} = torch.nn.Parameter({x}.detach()) * 2",
            "{name} = F.dropout({x}.contiguous(), 0.5)",
            "{name} = F.dropout({x}.contiguous(), 0.25) * 2",
            "{name} = (lambda *a, **k: a[0] + k['q'])({x}, q={y})",
            "{name} = sum(v for v in ({x}, {y}))",
            "{name} = torch.autograd.Function and {x}.clone()",
            "{name} = torch.utils.checkpoint.checkpoint(torch.tanh, {x}, use_reentrant=False)",
            "{name} = checkpoint(lambda t: t.sin() * t, {x}, use_reentrant=False)",
            "{name} = checkpoint(F.dropout, {x}.contiguous(), use_reentrant=False)",
            "{name} = torch.empty(0, dtype={x}.dtype).sum() + {x}",
            "{name} = {x}.sum() if {x}.numel() else {x}",
        )
    )
    text = text.format(name=name, x=m.one(m.smooth), y=m.one(m.smooth))
    m.lines.append(text)
    m.smooth.append(name)


STATEMENTS: dict[str, Callable[[Maker], None]] = {
    "plain": plain,
    "scalars": scalars,
    "whole": whole,
    "in place": in_place,
    "views": views,
    "data": data,
    "modes": modes,
}
