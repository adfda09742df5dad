"""Real runs beside the models: what a trace measured of each operation, and why it differs."""
