"""Settings of every test."""

from hypothesis import HealthCheck, settings

# Tests share the machine with the ranks of others: how long an example takes says nothing.
settings.register_profile(
    "syncopate", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("syncopate")
