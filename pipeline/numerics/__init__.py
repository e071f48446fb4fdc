"""Exact numerics: the Python side of `csrc/`, see docs/numerics.md."""

SPECIFICATION = "1"
"""Version of docs/numerics.md: another one gives other bits."""
