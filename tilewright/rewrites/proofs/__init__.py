"""Proofs of rules: both sides have one normal form, for all sizes (docs/proofs.md).

element.py     a graph as one value at a symbolic index
terms.py       sums of products, with conditions on indices as factors
ieee.py        the laws of floats that hold bit for bit
integers.py    the laws of integers, which wrap around
reals.py       the laws of real numbers, for rules that say that they round differently
signs.py       maxima of real numbers
factored.py    what all terms of a sum have in common
ranges.py      reductions over an axis in parts
logic.py       truth values as sums of products
form.py        normal forms of values
equality.py    when two nodes are equal
modular.py     exact evaluation modulo a prime, for what has no normal form
prove.py       a rule proved, or tested where it says so
"""
