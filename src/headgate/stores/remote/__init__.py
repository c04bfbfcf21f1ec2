"""What the stores behind a connection (Redis, a guard) have in common: jobs, coalescers, and hearing of wakes."""
