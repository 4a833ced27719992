"""The simulation of servers beside a trainer gives what a hand computes where one can."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from serving_scale import Rates, simulate

ONE_TOKEN = 1 + 1e-12
"""Tokens of a row on average, so that each has exactly one: lengths are geometric."""
RATES = Rates(
    slots=4, step=0.1, per_row=0.0, tokens=ONE_TOKEN, train=0.05, overhead=0.2, load=0.1, batch=8,
    requests=1e9,
)  # fmt: skip


def test_a_trainer_and_servers_that_wait_for_each_other_take_turns():
    """Two waves of four rows .2 s, an update 8 * .05 + .2 s, a load .1 s, but for the last one."""
    found = simulate(RATES, generating=1, training=1, ahead=0, updates=6)
    seconds = 6 * (0.2 + 0.6) + 5 * 0.1
    assert found["rows_per_second"] == pytest.approx(6 * 8 / seconds)
    assert found["servers_busy"] == pytest.approx(6 * 8 * 0.1 / (4 * seconds))
    assert found["trainer_busy"] == pytest.approx(6 * 0.6 / seconds)
    assert found["mean_staleness"] == found["largest_staleness"] == 0


def test_one_engine_whose_trainer_costs_nothing_gives_its_own_rate():
    """Four rows each .1 s; each row beside another adds to a step: 4 * .025 s more."""
    free = replace(RATES, train=0.0, overhead=0.0, load=0.0)
    assert simulate(free, 1, 1, 0)["rows_per_second"] == pytest.approx(4 / 0.1)
    assert simulate(free, 1, 1, 0)["servers_busy"] == pytest.approx(1)
    slower = replace(free, per_row=0.025)
    assert simulate(slower, 1, 1, 0)["rows_per_second"] == pytest.approx(4 / 0.2)
    longer = replace(free, tokens=50.0, batch=4000)  # with slots empty at the end of each batch
    assert simulate(longer, 1, 1, 0)["rows_per_second"] == pytest.approx(4 / (50 * 0.1), rel=0.05)


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ({"train": 0.01}, 40),  # four slots of .1 s
        ({"train": 0.05}, 20),  # .05 s a row
        ({"train": 0.05, "overhead": 0.4}, 10),  # 8 rows .4 s, and the update's own .4 s
        ({"train": 0.01, "requests": 5.0}, 5),  # what a client asks
        ({"train": 0.01, "requests": 5.0, "clients": 3}, 15),
    ],
)
def test_the_slowest_part_sets_the_rate_where_nobody_waits(changes, rate):
    rates = replace(RATES, **{"overhead": 0.0, "load": 0.0} | changes)
    found = simulate(rates, generating=1, training=1, ahead=4, updates=400)
    assert found["rows_per_second"] == pytest.approx(rate, rel=0.02)


def test_twice_the_gpus_give_twice_the_rows_and_an_exchange_that_grows():
    free = replace(RATES, load=0.0, overhead=0.0)
    one, two = (simulate(free, n, n, 0)["rows_per_second"] for n in (1, 2))
    assert two == pytest.approx(2 * one)
    shared = replace(free, overhead=0.1)  # .1 s of one GPU, .2 s of two
    seconds = 6 * (0.2 + 0.4 + 0.2)
    assert simulate(shared, 2, 2, 0)["rows_per_second"] == pytest.approx(6 * 16 / seconds)


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_rows_of_a_slow_trainer_are_as_old_as_it_may_be_ahead(ahead):
    """The first version gives the rows of the first updates too: 0, 1, ... up to it."""
    slow = replace(RATES, train=1.0, load=0.0)
    found = simulate(slow, generating=1, training=1, ahead=ahead, updates=20)
    expected = [*range(ahead), *[ahead] * (20 - ahead)]
    assert found["mean_staleness"] == pytest.approx(sum(expected) / 20)
    assert found["largest_staleness"] == ahead
