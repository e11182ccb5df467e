"""What the operating system says about this machine: cores, caches, memory, processor flags."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CPU_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_INFO = Path("/proc/cpuinfo")
_MEMORY = Path("/proc/meminfo")
# Version 2 of control groups, then version 1: limit, use, statistics.
_CGROUP_MEMORY = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}
# By machine: the system call that requests registers which Linux saves on request only. On x86 that
# is arch_prctl for the data of tiles.
_ON_REQUEST = {"x86_64": (158, 0x1023, 18)}


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by a container's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _cgroup_cores(_CGROUP_QUOTA)
    return max(1, cores if quota is None else min(cores, quota))


def _cgroup_cores(path: Path) -> int | None:
    # More threads than the quota allows would be stopped together for the rest of each period.
    try:
        quota, period = path.read_text().split()
        return None if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def available_memory() -> int | None:
    """Bytes that this process may still allocate, a container's limit included; None if unknown."""
    known = [_system_memory(_MEMORY)]
    known += [_cgroup_memory(root / limit, root / use, root) for root, limit, use in _CGROUP_MEMORY]
    return min((x for x in known if x is not None), default=None)


def system_memory() -> int | None:
    """Bytes of memory that this machine has; None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _system_memory(path: Path) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        return 1024 * sum(int(lines[k].split()[0]) for k in ("MemAvailable", "SwapFree"))
    except (OSError, ValueError, KeyError, IndexError):
        return None


def _cgroup_memory(limit: Path, use: Path, root: Path) -> int | None:
    try:
        text = limit.read_text().strip()
        if text == "max":
            return None
        left = int(text) - int(use.read_text())
    except (OSError, ValueError):
        return None
    return max(0, left + _page_cache(root / "memory.stat"))


def _page_cache(path: Path) -> int:
    """Bytes of cached files, which count as used and are dropped when memory is needed."""
    try:
        rows = dict(line.split(None, 1) for line in path.read_text().splitlines())
        return int(rows.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of data cache that one core sees at each level."""

    l1: int = 32 * 1024
    l2: int = 512 * 1024
    l3: int = 8 * 1024**2


def cache_sizes(root: Path = _CPU_CACHES) -> CacheSizes:
    """The first core's data caches; a level that the system does not report has a modest
    default."""
    sizes: dict[str, int] = {}
    for entry in sorted(root.glob("index*")):
        try:
            kind = (entry / "type").read_text().strip()
            level = (entry / "level").read_text().strip()
            text = (entry / "size").read_text().strip()
            size = int(text.rstrip("KMG")) * _UNITS.get(text[-1:], 1)
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and level in ("1", "2", "3") and size > 0:
            sizes[f"l{level}"] = size
    return CacheSizes(**sizes)


def cpu_flags(path: Path = _CPU_INFO) -> frozenset[str]:
    """The first processor's feature flags as the kernel names them; empty where it reports none."""
    return frozenset(_cpu_line(path, ("flags", "features")).split())


def cpu_model(path: Path = _CPU_INFO) -> str:
    """What the first processor is called where it is sold; empty where the system does not say."""
    return " ".join(_cpu_line(path, ("model name",)).split())


def _cpu_line(path: Path, names: tuple[str, ...]) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() in names:
            return value
    return ""


def load_per_core() -> float:
    """How many programs, of this machine's last minute, wanted each core; 0 where the system does
    not say."""
    try:
        return os.getloadavg()[0] / max(1, os.cpu_count() or 1)
    except (OSError, AttributeError):
        return 0.0


@cache
def registers_on_request() -> bool:
    """Requests the registers that the system saves on request only, for all threads of this process
    and those that it forks. False where there are none, or the system refuses: then the first
    instruction that uses one ends the process."""
    call = _ON_REQUEST.get(os.uname().machine) if sys.platform == "linux" else None
    if call is None or sys.maxsize < 2**32:
        return False
    try:
        return ctypes.CDLL(None).syscall(*map(ctypes.c_long, call)) == 0
    except (OSError, AttributeError):
        return False
