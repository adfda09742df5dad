"""Searching configurations: every one that is legal, ranked."""
