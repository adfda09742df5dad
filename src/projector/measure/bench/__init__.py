"""Single operations on the machine at hand: lists of shapes, their rows in a table, resuming."""
