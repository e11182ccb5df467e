"""Library functions, written in the language."""
