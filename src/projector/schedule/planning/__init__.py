"""Orders that are planned for times and memory: integer program, annealing, candidates."""
