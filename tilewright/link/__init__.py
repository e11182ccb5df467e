"""Linkers: relocatable objects of LLVM in, files that a loader takes out, without any tool."""
