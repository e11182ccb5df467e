"""SGLang registers configurations that newer versions of transformers have themselves."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

from transformers import AutoConfig

_register = AutoConfig.register


def _again(name: str, config: Any, exist_ok: bool = True) -> None:
    _register(name, config, exist_ok=exist_ok)


AutoConfig.register = staticmethod(_again)
