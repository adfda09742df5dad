"""What compiles kernels: all at once, beside the process that waits for them, or afterwards."""
