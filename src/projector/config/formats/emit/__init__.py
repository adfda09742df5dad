"""Writing a job as the configuration of a training framework."""
