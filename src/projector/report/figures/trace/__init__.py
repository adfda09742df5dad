"""Pictures of a trace: what each shows is worked out apart, so that pages show the same."""
