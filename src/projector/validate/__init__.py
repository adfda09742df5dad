"""Measurement tables, what is projected for each row, and how far off that is."""
