"""The figures that benchmarks share, by hand."""

import lmrl
import measuring
import numpy as np
import peer_report
import pytest

from lactchain.types import Action, Trajectory


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


def points(*pairs):
    return [{"num_env_steps": s, "cpu_seconds": s / 10, "return": r} for s, r in pairs]


def test_a_difference_counts_where_the_interval_of_paired_seeds_excludes_equality():
    ours = {seed: points((0, 0.0), (10, 0.5 + seed)) for seed in range(3)}
    near = {seed: points((10, 0.5 + seed + gap)) for seed, gap in enumerate((0.2, -0.1, 0.3))}
    above = {seed: points((10, 0.5 + seed + gap)) for seed, gap in enumerate((0.2, 0.3, 0.4))}
    # mean .1333, s .2082, t(2) 4.303: .1333 ± .5172; mean .3, s .1: .3 ± .2484
    assert peer_report.difference(near, ours) == ("+0.133 ± 0.517", "")
    assert peer_report.difference(above, ours) == ("+0.300 ± 0.248", "better")
    assert peer_report.difference(ours, above) == ("-0.300 ± 0.248", "worse")
    assert peer_report.difference({0: ours[0]}, ours) == ("", "")


def walk(*cells):
    """An episode through cells (row, column) of the default maze."""
    num_moves = len(cells) - 1
    return Trajectory(
        env_id="lactchain/Maze-v0",
        seed=0,
        observations=("",) * len(cells),
        actions=(Action("move down\n"),) * num_moves,
        rewards=(-1.0,) * num_moves,
        infos=tuple({"state": {"row": row, "column": column}} for row, column in cells),
        terminated=False,
        truncated=True,
    )


def test_move_accuracy_counts_moves_that_shorten_the_way_cell_by_cell():
    # (5, 6) to (8, 6) lead down to the goal; from (5, 6) one good move of three, from (6, 6) both
    episodes = [walk((5, 6), (6, 6), (7, 6)), walk((5, 6), (5, 6), (5, 5)), walk((6, 6), (7, 6))]
    assert lmrl.move_accuracy(episodes) == pytest.approx((1 / 3 + 1) / 2)
    assert lmrl.move_accuracy([walk((7, 6), (8, 6))]) == 1
