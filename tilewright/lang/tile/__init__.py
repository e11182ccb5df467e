"""The tile language: Triton's, for any target. Its public names are in `tilewright.language`."""
