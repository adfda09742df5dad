"""Figures as image files, and what they read."""
