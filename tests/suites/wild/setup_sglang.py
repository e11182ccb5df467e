"""SGLang registers configurations that newer versions of transformers have themselves, and writes
functions down as text while it is imported."""

from __future__ import annotations

from typing import Any

import dill
from transformers import AutoConfig

_register = AutoConfig.register


def _again(name: str, config: Any, exist_ok: bool = True) -> None:
    _register(name, config, exist_ok=exist_ok)


setattr(AutoConfig, "register", staticmethod(_again))  # noqa: B010
dill.dumps = lambda _: b""
