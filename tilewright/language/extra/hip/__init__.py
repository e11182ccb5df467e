"""`tl.extra.hip`: libdevice."""

from tilewright.language.extra import libdevice

__all__ = ["libdevice"]
