"""`tl.extra`: libdevice, under the names of the back ends that have one too."""

from tilewright.language.extra import cuda, hip, libdevice

__all__ = ["cuda", "hip", "libdevice"]
