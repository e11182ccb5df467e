"""Rewrites nobody wrote: programs enumerated by their values, equalities among them proved."""
