"""The figures that benchmarks share, by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import measuring  # noqa: E402


def test_the_interval_of_a_mean_is_students():
    mean, half = measuring.student([1.0, 2.0, 6.0])
    assert mean == 3 and half == pytest.approx(4.303 * ((4 + 1 + 9) / 2 / 3) ** 0.5)
    assert measuring.shown([1.0, 2.0, 6.0], "{:.2f}") == f"3.00 ± {half:.2f}"
    assert measuring.shown([2.5], "{:.2f}") == "2.50"


def test_interquartile_mean_and_interval():
    assert measuring.interquartile_mean([1, 2, 3, 4]) == 2.5
    mean = measuring.interquartile_mean([0, 1, 2, 3, 100])
    assert mean == pytest.approx((0.75 + 2 + 0.75 * 3) / 2.5)
    assert measuring.interquartile_mean([7]) == 7
    low, high = measuring.bootstrap_interval(np.arange(20.0))
    assert 5 < low < 9.5 < high < 14
    assert measuring.bootstrap_interval([3, 3, 3]) == (3, 3)


def test_sides_take_turns_and_ratios_are_those_within_a_repeat():
    order = []
    sides = {"ours": lambda: order.append("o"), "theirs": lambda: order.append("t")}
    found = measuring.in_turns(sides, 2, lambda side: side() or len(order))
    assert order == ["o", "t", "o", "t"] and found == {"ours": [1, 3], "theirs": [2, 4]}
    assert measuring.ratio([1, 4, 3], [2, 4, 1]) == 1


def test_tables_are_put_where_the_page_has_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<b>\nold\n<e>\nafter\n")
    for lines in (["", "new", ""], ["newer"]):
        measuring.put_between(page, "<b>", "<e>", lines)
    assert page.read_text() == "before\n<b>\nnewer\n<e>\nafter\n"
