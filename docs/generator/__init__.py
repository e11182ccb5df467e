"""Pages of the documentation that are made by a program: catalogues, reference, tutorials.

`mkdocs build --strict` in the root of the repository calls `hooks.py`, which adds them to the pages
that are files. Catalogues are read off the compiler's own registries, so they cannot go stale.
"""
