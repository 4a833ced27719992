"""The example in one file: what it computes by hand, and that it learns."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

FILE = Path(__file__).parent.parent / "examples/one_file.py"
sys.path.insert(0, str(FILE.parent))
import one_file  # noqa: E402


@pytest.fixture(scope="module")
def world():
    return one_file.World(2)


def test_a_chain_is_played_up_to_the_goal_and_what_is_none_moves_nothing(world):
    forward, left = world.actions
    state = world.tables.open_state(
        {"x": 0, "y": 1, "orientation": 0, "goal_x": 0, "goal_y": 0}  # the goal lies ahead
    )
    end, number = world.end, 0
    completions = [[forward, left, end], [left, end, end], [end, end, end], [number, end, end]]
    rewards, discounts, there = world.play(np.full(4, state), torch.tensor(completions))
    np.testing.assert_allclose(rewards, [1 - 0.02, -0.02, -1.02, -1.02])
    np.testing.assert_allclose(discounts, [0, 0.8, 0.8, 0.8])
    assert world.tables.terminal[there].tolist() == [True, False, False, False]
    assert there[2] == there[3] == state


def test_shortest_chains_reach_the_goal_in_as_many_actions_as_it_is_away(world):
    for state in world.starts:
        chain = world.shortest(state)
        *_, (there,) = world.play(np.array([state]), torch.tensor([chain]))
        assert world.tables.terminal[there] and len(chain) - 1 == world.distance[state]


def test_the_log_probability_of_a_completion_counts_its_first_end_and_no_other(world):
    torch.manual_seed(0)
    actor = one_file.LlamaForCausalLM(one_file.shape(world))
    prompt, forward, end = world.prompts[:1], world.actions[0], world.end
    short = one_file.mean_logps(actor, prompt, torch.tensor([[forward, end]]), end)
    filled = one_file.mean_logps(actor, prompt, torch.tensor([[forward, end, end, end]]), end)
    logits = actor(torch.cat([prompt, torch.tensor([[forward]])], dim=1)).logits[0, -2:]
    expected = logits.log_softmax(-1)[[0, 1], [forward, end]].mean()
    torch.testing.assert_close(short[0], expected)
    torch.testing.assert_close(filled, short)


def test_it_learns_the_smallest_grid():
    words = ["--size", "2", "--chains", "1600", "--states", "960", "--rounds", "1"]
    figures = one_file.main(words)
    assert figures["success"] >= 0.7  # cloned: a third; three seeds: .85 to .96


@pytest.mark.slow
def test_it_learns_the_grid_in_five_minutes_and_imports_no_more_than_it_says():
    asked = f"import sys; sys.path.insert(0, {str(FILE.parent)!r}); import one_file, json;"
    asked += "figures = one_file.main([]); print([m for m in sys.modules if m[:9] == 'lactchain'])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    last = [line for line in done.stdout.splitlines() if line.startswith("round 2")][0]
    assert float(last.split()[3].rstrip(",")) >= 0.99
    loaded = done.stdout.splitlines()[-1]
    assert "stages" not in loaded and "trainers" not in loaded and "models" not in loaded
