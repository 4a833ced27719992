"""Figures over seeds, by hand."""

from pathlib import Path

import numpy as np
import pytest


def test_interquartile_mean_and_interval(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "benchmarks")
    from seed_statistics import bootstrap_interval, interquartile_mean

    assert interquartile_mean([1, 2, 3, 4]) == 2.5
    assert interquartile_mean([0, 1, 2, 3, 100]) == pytest.approx((0.75 + 2 + 0.75 * 3) / 2.5)
    assert interquartile_mean([7]) == 7
    low, high = bootstrap_interval(np.arange(20.0))
    assert 5 < low < 9.5 < high < 14
    assert bootstrap_interval([3, 3, 3]) == (3, 3)
