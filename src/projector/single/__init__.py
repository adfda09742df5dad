"""One kernel at a time: GEMM, attention, a collective, and lists of them."""
