"""A package behind HTTP: `tilewright serve`."""
