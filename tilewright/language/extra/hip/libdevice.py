"""`tl.extra.hip.libdevice`: the same as `tl.extra.libdevice`."""

from tilewright.language.extra.libdevice import __dir__, __getattr__

__all__ = ["__dir__", "__getattr__"]
