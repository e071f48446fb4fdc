"""Who works on what: key-value stores, leases, claims, plans."""
