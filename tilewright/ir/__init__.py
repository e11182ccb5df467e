"""The language that all levels share: dims, scalars, tensors, operators, graphs, passes."""
