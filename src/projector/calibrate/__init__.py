"""Fitting a device's constants to a measurement table; writes a new profile, never edits one."""
