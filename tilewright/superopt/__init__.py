"""Rewrites nobody wrote: programs enumerated by their values, equalities among them proved, and the
best of all equal programs searched for."""

from tilewright import ops as ops  # operators are named in files and vocabularies
