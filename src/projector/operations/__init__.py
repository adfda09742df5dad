"""From workloads to the operation table, the narrow waist that every reading starts from."""
