"""The single gate from configuration to columns: casts, units, checks, deduplication."""
