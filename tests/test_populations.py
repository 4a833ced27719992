"""Populations: batched networks and Adam do for each member what they would do for it alone."""

from copy import deepcopy
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lactchain.baselines.member_envs import MemberEnvs
from lactchain.baselines.networks import Inputs, Parameters
from lactchain.baselines.population import Adam
from lactchain.baselines.ppo import PPO
from lactchain.baselines.settings import AgentConfig, PPOConfig
from lactchain.errors import ConfigError

RNG = np.random.default_rng(0)
SMALL = PPOConfig(num_envs=4, num_steps=16, batch_size=32, num_epochs=2, hidden=(8,))


def member_net(parameters: Parameters, member: int) -> nn.Sequential:
    """The same MLP in torch's own layers."""
    layers, views = [], parameters.views["net"]
    for n in range(0, len(views), 2):
        linear = nn.Linear(views[n].shape[1], views[n].shape[2])
        linear.weight.data, linear.bias.data = views[n][member].T, views[n + 1][member, 0]
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def three_members():
    return Parameters(AgentConfig(hidden=(7, 6)), {"net": (5, 3, 1.0)}, 3, RNG)


def test_a_batched_mlp_is_torchs_mlp_for_each_member():
    parameters, x = three_members(), torch.randn(3, 4, 5)
    expected = torch.stack([member_net(parameters, n)(x[n]) for n in range(3)])
    torch.testing.assert_close(parameters("net", x), expected)


def test_numbers_of_cells_are_coded_one_hot_and_pictures_flattened():
    codes = Inputs(spaces.MultiDiscrete([2, 3])).encode(np.array([[[1, 2]], [[0, 0]]]))
    assert codes.tolist() == [[[0, 1, 0, 0, 1]], [[1, 0, 1, 0, 0]]]
    assert Inputs(spaces.Discrete(3)).encode(np.array([[2]])).tolist() == [[[0, 0, 1]]]
    picture = spaces.Box(0, 255, (2, 3), np.uint8)
    seen = Inputs(picture, rescale=True).encode(np.array([[[[0, 255, 0], [255, 0, 255]]]]))
    assert seen.tolist() == [[[-1, 1, -1, 1, -1, 1]]]


@pytest.mark.parametrize(("space", "rescale"), [
    (spaces.Text(5), False),
    (spaces.Dict({"a": spaces.Discrete(2)}), False),
    (spaces.Discrete(3, start=1), False),
    (gym.make("CartPole-v1").observation_space, True),  # without bounds
    (spaces.Discrete(3), True),
    (spaces.Box(0, 0, (2,)), True),
])  # fmt: skip
def test_a_space_that_no_network_sees_or_that_has_no_bounds_to_rescale_is_refused(space, rescale):
    said = ("observation space: ", "rescale_observations: expected a Box with finite bounds")
    with pytest.raises(ConfigError, match=said[rescale]):
        Inputs(space, rescale)


def test_numbers_are_rescaled_from_the_bounds_of_their_space_and_only_if_asked():
    space = gym.make("MountainCar-v0").observation_space  # [-1.2, 0.6] and [-0.07, 0.07]
    rows = np.array([[[-1.2, 0.07]], [[-0.3, -0.035]]], dtype=np.float32)
    as_it_is, rescaled = (
        PPO(replace(SMALL, rescale_observations=asked), space, spaces.Discrete(3)).inputs
        for asked in (False, True)
    )
    expected = torch.tensor([[[-1.0, 1.0]], [[0.0, -0.5]]])
    torch.testing.assert_close(rescaled.encode(rows), expected, atol=1e-6, rtol=0)
    assert as_it_is.encode(rows).tolist() == rows.tolist()


def test_weights_begin_orthogonal_and_members_differ():
    parameters = three_members()
    first = parameters.views["net"][0].detach()  # (3, 5, 7): rows orthogonal
    for member in range(3):
        torch.testing.assert_close(first[member] @ first[member].T, 2 * torch.eye(5))
    assert not torch.equal(first[0], first[1])


def test_batched_adam_is_torchs_adam_for_each_member_with_its_own_rate_and_clipping():
    parameters = three_members()
    rates, norms = np.array([1e-3, 1e-2, 3e-4]), np.array([0.1, 100.0, 0.5])
    adam = Adam(parameters, eps=1e-5)
    nets = [deepcopy(member_net(parameters, member)) for member in range(3)]
    own = zip(nets, rates, strict=True)
    optimizers = [torch.optim.Adam(net.parameters(), lr, eps=1e-5) for net, lr in own]
    for _ in range(5):
        x = torch.randn(3, 4, 5)
        loss = parameters("net", x).square().sum()
        adam.step(parameters.gradient(loss), rates, norms)
        for member, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            optimizer.zero_grad()
            net(x[member]).square().sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), norms[member])
            optimizer.step()
    for member, net in enumerate(nets):
        ours = parameters.views["net"][0][member]
        torch.testing.assert_close(ours, net[0].weight.T, atol=1e-6, rtol=1e-4)


def test_moments_of_weights_without_gradients_do_not_end_in_denormal_numbers():
    """They end in zero, or, by the products of some processors, in a number just above these."""
    parameters = three_members()
    adam, gradient = Adam(parameters), torch.full_like(parameters.flat, 1e-30)
    for _ in range(200):
        adam.step(gradient, np.full(3, 1e-3))
        gradient.zero_()
    assert not ((adam.mean != 0) & (adam.mean.abs() < torch.finfo(adam.mean.dtype).tiny)).any()
    assert torch.tensor(1e-40).item() != 0.0  # elsewhere they are what they were


def test_members_that_diverge_stay_as_they_are():
    parameters = three_members()
    adam, before = Adam(parameters), parameters.flat.clone()
    gradient = torch.ones_like(before)
    gradient[1] = torch.nan
    adam.step(gradient, np.full(3, 1e-3))
    assert (parameters.flat != before).any(1).tolist() == [True, False, True]
    assert adam.steps.tolist() == [1, 0, 1] and adam.diverged.tolist() == [False, True, False]
    assert torch.isfinite(adam.mean).all() and not adam.mean[1].any()


def test_polyak_moves_by_a_share():
    parameters = three_members()
    target = parameters.copy()
    start, parameters.flat[:] = parameters.flat.clone(), parameters.flat + 1
    target.move_towards(parameters, 0.25)
    torch.testing.assert_close(target.flat - start, torch.full_like(start, 0.25))


def test_every_step_of_every_copy_is_counted_and_episodes_are_summed_whole():
    envs = MemberEnvs("CartPole-v1", 2, 3, seed=0, max_episode_steps=30)
    rng, lengths = np.random.default_rng(0), np.zeros((2, 3), dtype=int)
    expected = []
    for _ in range(100):
        step = envs.step(rng.integers(2, size=(2, 3)))
        lengths += 1
        ended = step.terminated | step.truncated
        for member, copy in zip(*np.nonzero(ended), strict=True):
            expected.append((int(member), float(lengths[member, copy]), int(lengths[member, copy])))
            lengths[member, copy] = 0
        # The successor of a last step is what the episode ended on.
        assert np.array_equal(step.next_observations[~ended], envs.observations[~ended])
        assert (np.abs(envs.observations[ended]) <= 0.05).all()  # fresh starts
        assert (np.abs(step.next_observations[ended]).max(-1) > 0.05).all()
    assert envs.num_env_steps == 600
    found = [(e.member, e.episode_return, e.length) for e in envs.pop_episodes()]
    assert found == expected and len(found) > 10 and not envs.pop_episodes()
