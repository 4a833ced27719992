"""Tunables are declared on the field, found by dotted name, and set within their bounds only."""

from dataclasses import dataclass

import pytest

from lactchain.config.tunable import Tunable, tunable, tunable_values, tunables, with_tunables
from lactchain.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    rate: float = tunable(1e-3, 1e-5, 1e-1, log=True)
    name: str = "x"


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    maybe: Inner | None = None
    size: int = tunable(4, 1, 16, integer=True)
    limit: int = 16

    def __post_init__(self):
        if self.size > self.limit:
            raise ValueError(f"size: expected at most limit = {self.limit}, got {self.size}")


def test_tunables_are_found_by_dotted_name():
    found = tunables(Outer)
    assert list(found) == ["inner.rate", "maybe.rate", "size"]
    assert found["inner.rate"] == Tunable(1e-5, 1e-1, log=True)
    assert tunable_values(Outer()) == {"inner.rate": 1e-3, "size": 4}


def test_setting_tunables_leaves_the_rest():
    changed = with_tunables(Outer(), {"inner.rate": 0.01, "size": 2})
    assert changed == Outer(inner=Inner(rate=0.01), size=2)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"inner.rate": 1.0}, r"inner.rate: expected a number in \[1e-05, 0.1\], got 1.0"),
        ({"size": 2.5}, "size: expected a whole number"),
        ({"colour": 1}, "colour: no such tunable; there are inner.rate"),
    ],
)
def test_what_is_out_of_bounds_is_refused(values, said):
    with pytest.raises(ConfigError, match=said):
        with_tunables(Outer(), values)


def test_what_the_config_refuses_is_a_config_error():
    with pytest.raises(ConfigError, match="size: expected at most limit = 3"):
        with_tunables(Outer(size=2, limit=3), {"size": 8})


def test_shares_of_a_range_go_by_its_scale():
    assert Tunable(1e-4, 1e-2, log=True).at(0.5) == pytest.approx(1e-3)
    assert Tunable(0.0, 4.0).at(0.25) == 1.0
    assert Tunable(1, 4, integer=True).at(0.5) == 2
    assert Tunable(1, 4, integer=True).clip(9.6) == 4


def test_a_share_is_where_a_value_lies():
    for tunable_, value in ((Tunable(1e-4, 1e-2, log=True), 1e-3), (Tunable(0.0, 4.0), 1.0)):
        assert tunable_.at(tunable_.share(value)) == pytest.approx(value)
    assert Tunable(1e-4, 1e-2, log=True).share(1e-3) == pytest.approx(0.5)
    assert Tunable(0.1, 1.0).share(0.0) == 0.0  # a default may lie outside


def test_small_whole_numbers_can_step_both_ways():
    epochs = Tunable(1, 20, integer=True)
    assert epochs.step(2, 0.01) == 3 and epochs.step(2, -0.01) == 1
    assert epochs.step(1, -0.01) == 1 and epochs.step(20, 0.5) == 20
    assert Tunable(0.0, 4.0).step(1.0, 0.25) == pytest.approx(2.0)
