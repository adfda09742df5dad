"""One hypothesis profile for all tests."""

from hypothesis import HealthCheck, settings

# A first example may compile a kernel, which no per-example deadline survives.
settings.register_profile(
    "projector", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("projector")
