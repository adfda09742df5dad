"""Times and memory of an order."""
