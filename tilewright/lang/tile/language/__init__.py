"""Functions, types and rules of the language."""
