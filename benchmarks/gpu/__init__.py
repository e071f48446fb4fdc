"""The parts of gpu_check.py, each a process of its own: `python -m gpu PART`; see `checks.py` for what they tell."""
