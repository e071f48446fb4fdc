"""The parts of gpu_check.py, each a process of its own: `python -m easyscale.benchmarks.gpu PART OPTIONS FILE`.

See `checks.py` for what they tell, `parts.py` for how they are run.
"""
