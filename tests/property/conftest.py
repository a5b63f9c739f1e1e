"""Hypothesis, made deterministic: the same examples in every run, nothing kept between runs."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# An example compiles code, which takes longer than Hypothesis likes.
settings.register_profile(
    'deterministic',
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile('deterministic')
