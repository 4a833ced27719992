"""Bounds of config fields are kept; tunables are set within theirs only."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import pytest

from lactchain import ConfigError
from lactchain.config import bounds


@dataclass(frozen=True)
class Part(bounds.Bounded):
    """A part."""

    count: bounds.AtLeast1 = 3
    """How many."""
    rate: bounds.Positive = 0.5
    """How fast."""
    share: bounds.Share = 0.0
    """How much."""
    decay: Annotated[float, bounds.Bound(at_least=0, below=1)] = 0.5
    """How long."""
    limit: bounds.AtLeast1 | None = None
    """How far; null: without end."""
    widths: tuple[bounds.AtLeast1, ...] = (8,)
    """How wide."""


@pytest.mark.parametrize(("field", "refused", "taken", "said"), [
    ("count", 0, 1, "at least 1, got 0"), ("limit", 0, None, "at least 1, got 0"),
    ("rate", 0.0, 1e-9, "a number above 0, got 0.0"),
    ("rate", math.nan, 2.0, "a number above 0, got nan"),
    ("share", 1.1, 1.0, r"a number in \[0, 1\], got 1.1"),
    ("share", -0.1, 0.0, r"a number in \[0, 1\], got -0.1"),
    ("decay", 1.0, 0.0, r"a number in \[0, 1\), got 1.0"),
    ("widths", (8, 0), (8, 1), r"at least 1, got \(8, 0\)"),
])  # fmt: skip
def test_a_number_beyond_its_bound_is_refused_and_one_within_is_taken(field, refused, taken, said):
    with pytest.raises(ValueError, match=f"^{field}: expected {said}$"):
        replace(Part(), **{field: refused})
    assert getattr(replace(Part(), **{field: taken}), field) == taken


@dataclass(frozen=True)
class Inner:
    rate: float = bounds.tunable(1e-3, 1e-5, 1e-1, log=True)
    name: str = "x"


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    maybe: Inner | None = None
    size: int = bounds.tunable(4, 1, 16, integer=True)
    limit: int = 16

    def __post_init__(self):
        if self.size > self.limit:
            raise ValueError(f"size: expected at most limit = {self.limit}, got {self.size}")


def test_tunables_are_found_by_dotted_name_and_set_alone():
    found = bounds.tunables(Outer)
    assert list(found) == ["inner.rate", "maybe.rate", "size"]
    assert found["inner.rate"] == bounds.Tunable(1e-5, 1e-1, log=True)
    assert bounds.tunable_values(Outer()) == {"inner.rate": 1e-3, "size": 4}
    changed = bounds.with_tunables(Outer(), {"inner.rate": 0.01, "size": 2})
    assert changed == Outer(inner=Inner(rate=0.01), size=2)


@pytest.mark.parametrize(("values", "said"), [
    ({"inner.rate": 1.0}, r"inner.rate: expected a number in \[1e-05, 0.1\], got 1.0"),
    ({"size": 2.5}, "size: expected a whole number"),
    ({"size": 8}, "size: expected at most limit = 5"),
    ({"colour": 1}, "colour: no such tunable; there are inner.rate"),
])  # fmt: skip
def test_what_is_out_of_bounds_or_refused_by_the_config_is_a_config_error(values, said):
    with pytest.raises(ConfigError, match=said):
        bounds.with_tunables(Outer(limit=5), values)


def test_shares_of_a_range_go_by_its_scale_and_back():
    by_log, evenly = bounds.Tunable(1e-4, 1e-2, log=True), bounds.Tunable(0.0, 4.0)
    for range_, share, value in ((by_log, 0.5, 1e-3), (evenly, 0.25, 1.0)):
        assert range_.at(share) == pytest.approx(value)
        assert range_.share(value) == pytest.approx(share)
    assert bounds.Tunable(1, 4, integer=True).at(0.5) == 2
    assert bounds.Tunable(1, 4, integer=True).clip(9.6) == 4
    assert bounds.Tunable(0.1, 1.0).share(0.0) == 0.0  # a default may lie outside


def test_small_whole_numbers_can_step_both_ways():
    epochs = bounds.Tunable(1, 20, integer=True)
    assert epochs.step(2, 0.01) == 3 and epochs.step(2, -0.01) == 1
    assert epochs.step(1, -0.01) == 1 and epochs.step(20, 0.5) == 20
    assert bounds.Tunable(0.0, 4.0).step(1.0, 0.25) == pytest.approx(2.0)
