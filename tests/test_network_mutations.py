"""Networks grow, shrink and change without losing more of what they have learnt than is said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_search import AGENTS, SMALL, trained

from lactchain.baselines.networks import Parameters
from lactchain.baselines.ppo import PPO
from lactchain.search.agents import learnt_by, revived
from lactchain.search.mutations import Child
from lactchain.search.settings import MutationConfig
from lactchain_extras.network_mutations import mutate_architecture, mutate_parameters

GROW, CUT = MutationConfig(growth_share=1.0), MutationConfig(growth_share=0.0)


def weights_of(learnt):
    return learnt["parts"]["parameters"]["flat"]


@pytest.fixture(scope="module")
def member():
    """What a small PPO agent has learnt; to be copied, never changed."""
    return learnt_by(trained()[0])


def outputs(kind, config, learnt, spaces):
    """What the networks and targets of a member say about some states, and actions."""
    population = revived(kind, Child(config, learnt, {}), spaces, seed=0)
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((1, 50, *spaces[0].shape)).astype(np.float32))
    actions = torch.from_numpy(rng.uniform(-1, 1, (1, 50, 1)).astype(np.float32))
    found = []
    for part in population.parts.values():
        for name in part.views if isinstance(part, Parameters) else ():
            seen = torch.cat([x, actions], -1) if name == "q0" else x
            found.append(part(name, seen).detach())
    return found


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize(("kind", "config"), AGENTS)
def test_growth_leaves_the_function_as_it_is(kind, config, activation):
    config = replace(config, activation=activation)
    population, _, spaces = trained(config, kind)
    learnt, rng, seen = learnt_by(population), np.random.default_rng(0), set()
    before = outputs(kind, config, learnt, spaces)
    for _ in range(12):
        mutant = mutate_architecture(Child(config, learnt, {}), GROW, rng)
        assert sum(mutant.config.hidden) > sum(config.hidden)
        seen.add(len(mutant.config.hidden))
        after = outputs(kind, mutant.config, mutant.state, spaces)
        for one, other in zip(before, after, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert seen == ({2} if activation == "tanh" else {2, 3})


def test_growth_keeps_the_moments_and_new_weights_have_none():
    config = replace(SMALL, activation="relu")
    learnt, rng, seen = learnt_by(trained(config)[0]), np.random.default_rng(0), set()
    for _ in range(8):
        mutant = mutate_architecture(Child(config, learnt, {}), GROW, rng)
        seen.add(len(mutant.config.hidden))
        for key in ("mean", "square"):
            old, new = learnt["parts"]["optimizer"][key], mutant.state["parts"]["optimizer"][key]
            assert new.size > old.size and np.count_nonzero(new) == np.count_nonzero(old)
            assert new.sum() == pytest.approx(old.sum(), rel=1e-5)
        assert mutant.state["parts"]["optimizer"]["steps"] == learnt["parts"]["optimizer"]["steps"]
    assert seen == {2, 3}


def test_shrinking_gives_a_smaller_network_and_leaves_the_parent_alone(member):
    spaces, rng, seen = trained()[2], np.random.default_rng(0), set()
    before = weights_of(member).copy()
    for _ in range(12):
        mutant = mutate_architecture(Child(SMALL, member, {}), CUT, rng)
        seen.add(mutant.config.hidden)
        outputs(PPO, mutant.config, mutant.state, spaces)
    assert seen == {(8,), (6, 6), (8, 5)} and np.array_equal(weights_of(member), before)


def test_moments_are_cut_as_the_weights_they_belong_to_and_those_of_a_merged_layer_are_zero():
    learnt, rng, seen = learnt_by(trained()[0]), np.random.default_rng(0), set()
    learnt["parts"]["optimizer"]["mean"][:] = weights_of(learnt)
    for _ in range(12):
        mutant = mutate_architecture(Child(SMALL, learnt, {}), CUT, rng)
        weights = weights_of(mutant.state).ravel()
        moments = mutant.state["parts"]["optimizer"]["mean"].ravel()
        merged = len(mutant.config.hidden) < len(SMALL.hidden)
        kept = moments != 0 if merged else slice(None)
        assert np.array_equal(moments[kept], weights[kept])
        assert (np.count_nonzero(moments) < np.count_nonzero(weights)) == merged
        seen.add(merged)
    assert seen == {False, True}


def test_a_network_without_hidden_layers_has_no_architecture_to_change():
    assert mutate_architecture(Child(replace(SMALL, hidden=()), None, {}), GROW, None) is None


def test_noise_is_relative_to_the_weights_and_spares_the_optimiser(member):
    child, noisy = Child(SMALL, member, {}), MutationConfig(noise=0.1)
    mutant = mutate_parameters(child, noisy, np.random.default_rng(0))
    old, new = weights_of(member), weights_of(mutant.state)
    assert 0.05 < np.std(new - old) / np.std(old) < 0.2
    for key, moments in member["parts"]["optimizer"].items():
        assert np.array_equal(mutant.state["parts"]["optimizer"][key], moments)
