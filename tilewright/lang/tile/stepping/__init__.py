"""Kernels step by step on numpy, and checked."""
