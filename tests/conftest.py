"""Settings of every test."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# Tests share the machine with the ranks of others: how long an example takes says nothing.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
# The same examples every time, so that a change is judged by itself.
settings.register_profile("syncopate", settings.get_profile("explore"), derandomize=True)
settings.load_profile("syncopate")

# Plans of tests are kept for no other run, and tests get none of the user's.
os.environ["SYNCOPATE_CACHE"] = "off"

# Who starts in the background of a script ignores interrupts, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MOST_WORKERS = 4


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the cores for ``-n auto``: part of their time tests wait for ranks."""
    return min((os.cpu_count() or 1) + 1, MOST_WORKERS)
