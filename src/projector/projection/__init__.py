"""From workload costs to the memory and the time of a step, every term separate."""
