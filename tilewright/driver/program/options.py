"""What can be asked of a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ir.target import Target

if TYPE_CHECKING:  # loaded only by who compiles
    from tilewright.tune.choose import Chooser


@dataclass(frozen=True)
class Options:
    target: Target | None = None  # None: as TILEWRIGHT_TARGET says, or this machine
    fold_weights: bool = True  # what depends on weights only is computed once, not at every call
    pack: bool = True  # operands are stored in the order in which kernels read them
    own_weights: bool = False  # weights that are packed are read packed by everyone
    online_softmax: bool = False  # attention as one reduction over the keys
    winograd: bool = True  # 3x3 convolutions by tiles, where an estimate says that it is faster
    # "strict": sums are added in the order of their definition, and nothing is folded that rounds
    precision: str = "reassociate"
    # 16-bit results are rounded between operators, as eager's are; False: a kernel computes in
    # float32 and rounds what it stores
    round_between: bool = True
    profile: bool = False  # the program's details.marks then tell where time goes
    dump: Path | None = None  # where stages are written; None: as TILEWRIGHT_DUMP says
    resume: Path | None = None  # where edited stages are read; None: as TILEWRIGHT_RESUME says
    schedules: Mapping[str, str] = field(default_factory=dict)  # traces by the names of kernels
    # Who schedules the other kernels: a name of tune/choose.py, or a chooser of one's own; "auto":
    # as TILEWRIGHT_CHOOSE says
    choose: str | Chooser = "auto"
    tune_seconds: int = 0  # that timing may take per program; 0: as TILEWRIGHT_TUNE_SECONDS says
