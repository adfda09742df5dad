"""Sweeps: a space of jobs becomes a table of results, on disk or in memory."""
