"""Measuring the device at hand, and restoring what a smaller job measured to the job asked for."""
