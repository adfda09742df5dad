"""Whole training runs: time, failures, energy, money."""
