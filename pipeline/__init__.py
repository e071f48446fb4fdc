"""What a job is and how a step runs; the processes that run it; what a user calls."""
