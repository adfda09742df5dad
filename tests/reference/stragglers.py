"""Plain-Python expectation of the largest of many normal numbers, from its density."""

from math import erf, exp, pi, sqrt


def largest_of_normals(count, steps=20_000, furthest=10.0):
    """Integrate x n p(x) P(x)**(n-1) with Simpson's rule; p is the density, P its integral."""
    if count == 1:
        return 0.0
    width = 2.0 * furthest / steps
    total = 0.0
    for i in range(steps + 1):
        x = -furthest + i * width
        below = 0.5 * (1.0 + erf(x / sqrt(2.0)))
        value = x * count * exp(-0.5 * x * x) / sqrt(2.0 * pi) * below ** (count - 1)
        total += value * (1 if i in {0, steps} else 4 if i % 2 else 2)
    return total * width / 3.0
