"""Graphs as ONNX models. `writer.py` has the table of operators and what each is given, `graph.py`
walks a graph, and each file `op_*.py` writes a family of operators: the table fills by their being
there.
"""
