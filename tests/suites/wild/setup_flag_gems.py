"""FlagGems takes this CPU for its device: its operators are put in place of torch's for the CPU.

It reads the device's name while it is imported, so the name is changed where vendors are described.
What it asks of `torch.cuda` it then asks of `torch.cpu`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sources = next(Path(p) for p in sys.path if (Path(p) / "flag_gems" / "ops").is_dir())
sys.path.append(str(sources / "flag_gems" / "runtime" / "backend"))

import backend_utils  # noqa: E402  # found by the path above

_described = backend_utils.VendorInfoBase


def _on_cpu(vendor_name: str, device_name: str, **more: Any) -> Any:
    return _described(vendor_name=vendor_name, device_name="cpu", **more)


backend_utils.VendorInfoBase = _on_cpu
for name in vars(torch.cuda):
    # `torch.cpu.current_device()` is a word, where lists of FlagGems have a place per device.
    if name == "current_device" or not (name.startswith("_") or hasattr(torch.cpu, name)):
        setattr(torch.cpu, name, getattr(torch.cuda, name))
