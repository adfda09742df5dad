"""Readers of configuration files that other tools wrote; each returns a native mapping."""
