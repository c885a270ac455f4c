"""What holds for every test."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test fails for the speed of the machine that it runs on.
settings.register_profile("gpuclaim", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuclaim")
