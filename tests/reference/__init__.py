"""Slow, obviously right twins of what the package computes."""
