"""Whose a device is just now: ours while it is spare, its owner's as soon as he wants it."""
