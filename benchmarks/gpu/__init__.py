"""The parts of gpu_check.py, each a process of its own: `python -m easyscale.benchmarks.gpu PART`; see `checks.py` for what they tell."""
