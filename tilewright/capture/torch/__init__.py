"""PyTorch graphs into graphs: what Dynamo and AOTAutograd capture, operator by operator.

`translate(gm)` walks a graph of ATen operators and gives a `Captured`: native segments (ir graphs)
with host calls between them where an operator has no translation. Adding an ATen operator is one
function in an `aten_*.py` file.
"""
