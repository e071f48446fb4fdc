"""Exact numerics: the Python side of `csrc/`, see docs/numerics.md."""
