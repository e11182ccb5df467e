"""ONNX models as graphs. `model.py` reads and checks a file, `translate.py` walks it, and each file
`op_*.py` translates a family of operators: the table of translations fills by their being there.
"""
