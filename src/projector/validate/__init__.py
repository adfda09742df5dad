"""Measurement tables: a projection of each row, and its error."""
