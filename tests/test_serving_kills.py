"""What the benchmark of kills counts as well."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from serving_kills import is_well

PIPELINE = {
    "run": "run_pipeline", "crashes": [], "names_are_of_their_content": True, "equal": True
}  # fmt: skip
CLIENT = PIPELINE | {"run": "collect_rollouts", "names_are_of_their_content": None}


def test_a_run_that_ends_as_that_of_no_kill_is_well():
    assert is_well(PIPELINE) and is_well(CLIENT)


@pytest.mark.parametrize(
    "found",
    [
        PIPELINE | {"crashes": [1]},
        PIPELINE | {"equal": False},
        PIPELINE | {"names_are_of_their_content": False},
        PIPELINE | {"names_are_of_their_content": None},
        CLIENT | {"crashes": [-11]},
    ],
)
def test_a_crash_other_weights_and_names_of_nothing_are_not_well(found):
    assert not is_well(found)
