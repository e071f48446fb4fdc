"""Which job gets which devices: what is known of jobs, what they could do with devices, and policies that choose."""
