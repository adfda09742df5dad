"""Plain-Python memory-bound operators."""


def elementwise_time(moved_bytes, flop, exponentials, device):
    return max(
        moved_bytes / device["elementwise_bytes_per_s"],
        flop / device["vector_flop_per_s"],
        exponentials / device["transcendental_per_s"],
    )
