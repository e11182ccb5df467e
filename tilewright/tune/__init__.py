"""Choices that are found by measuring; see `tilewright.te.tune` and `tilewright.autotune`."""

from tilewright.tune.choosing import Values, choice, factors, flag, given

__all__ = ["Values", "choice", "factors", "flag", "given"]
