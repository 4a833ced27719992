"""One token is one step: what is observed, what an action does, and that agents of SB3 play it."""

import gc
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as check_env_sb3

from lactchain import ActorConfig, ConfigError, EnvironmentFault
from lactchain_extras.next_token import CausalNextToken
from lactchain_extras.token_env import LetterModel, TokenEnv


def table(*logits):
    """Three tokens with given logits; the last one ends the sentence."""
    return SimpleNamespace(
        vocab_size=3,
        eos_token_id=2,
        max_length=32,
        encode=lambda prompt: [0],
        decode=lambda token_ids: "".join("ab!"[token] for token in token_ids),
        logits=lambda token_ids: np.array(logits),
        close=lambda: None,
    )


@pytest.mark.parametrize(("control", "view"), [("switch", "compact"), ("strength", "full")])
def test_both_checkers_have_nothing_to_say(control, view):
    arguments = {"control": control, "view": view, "prompts": ["the cat", "a dog"]}
    check_env(gym.make("lactchain/Token-v0", **arguments).unwrapped)
    check_env_sb3(TokenEnv(**arguments))


def test_the_compact_view_holds_log_probabilities_entropy_and_margin():
    env = TokenEnv(table(0.0, np.log(2.0), 0.0), top_k=3)  # probabilities 1/4, 1/2, 1/4
    observation, info = env.reset(seed=0)
    quarter, half = np.log(0.25), np.log(0.5)
    expected = [half, quarter, quarter, 1.5 * np.log(2), np.log(2)]
    np.testing.assert_allclose(observation, expected, rtol=1e-6)
    assert info == {"prompt": 0, "text": "", "token_ids": [], "logprob": 0.0}
    assert TokenEnv(table(0.0, 1.0, 0.0), top_k=1).reset()[0].shape == (3,)


def test_the_full_view_holds_all_logits_and_says_what_they_cost(caplog):
    caplog.set_level("INFO", "lactchain_extras")
    env = TokenEnv(view="full")
    assert env.observation_space.shape == (27,)
    np.testing.assert_array_equal(env.reset(seed=0)[0], env.model.table[26].astype(np.float32))
    assert env.replay_bytes(10) == 2 * 10 * 27 * 4
    assert "27 logits: a replay buffer of 1000000 steps takes 0.2 GB" in caplog.text
    assert TokenEnv(top_k=8).replay_bytes() == 80_000_000


@pytest.mark.parametrize(("logits", "over", "text"), [
    ((0.0, 0.0, 99.0), [True, False], ""), ((99.0, 0.0, 0.0), [False, True], "aa"),
])  # fmt: skip
def test_a_sentence_that_ends_is_terminated_and_one_that_is_cut_truncated(logits, over, text):
    reward = Mock(return_value=7.0)
    env = TokenEnv(table(*logits), reward=reward, top_k=2, max_new_tokens=2)
    env.reset(seed=0)
    for _ in text[1:]:
        assert env.step(0)[1:4] == (0.0, False, False)
    _, *found, info = env.step(0)
    assert found == [7.0, *over] and info["text"] == text
    reward.assert_called_once_with(text, pytest.approx(0.0, abs=1e-6))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_the_log_probability_is_that_of_the_unperturbed_model():
    env = TokenEnv(table(0.0, np.log(2.0), 0.0), control="strength", top_k=2, max_new_tokens=1)
    for seed in range(5):
        env.reset(seed=seed)
        *_, info = env.step(np.array([1.0], np.float32))
        assert info["logprob"] == pytest.approx(np.log([0.25, 0.5, 0.25][info["token_ids"][0]]))


@pytest.mark.parametrize(("control", "action", "scale"), [
    *(("strength", np.array([a], np.float32), 4.0**-a) for a in (-1, 0, 1)),
    ("switch", 0, 1.0), ("switch", 1, 0.25),
])  # fmt: skip
def test_the_action_decides_what_the_token_is_drawn_from(control, action, scale):
    env = TokenEnv(table(1.0, 0.0, 0.0), control=control, top_k=2, max_new_tokens=1)
    env.reset(seed=0)
    tokens = []
    for _ in range(1000):
        env.reset()
        tokens.append(env.step(action)[-1]["token_ids"][0])
    expected = np.exp(scale) / (np.exp(scale) + 2)  # of the likeliest token
    assert tokens.count(0) / 1000 == pytest.approx(expected, abs=0.05)  # three standard deviations


def test_a_seed_says_the_same_sentence_again():
    def sentence(seed):
        env = TokenEnv(prompts=["x", "y", "z"])
        _, info = env.reset(seed=seed)
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(0)
            over = terminated or truncated
        return info["prompt"], info["text"]

    assert sentence(3) == sentence(3) and len({sentence(seed) for seed in range(10)}) > 5
    env = TokenEnv(prompts=["x", "y"], render_mode="ansi")
    assert env.reset(options={"prompt": 1})[1]["prompt"] == 1 and env.render() == "y > "


@pytest.mark.parametrize(("arguments", "message"), [
    ({"prompts": []}, "prompts: expected at least one"),
    ({"prompts": ["ok", "x" * 1020]}, r"prompts\[1\]: expected 1 to 1008 tokens .* got 1021"),
    ({"prompts": "Go!"}, "prompts: expected a list of texts, got 'Go!' alone"),
    ({"max_new_tokens": 0}, "max_new_tokens: expected 1 to 1023"),
    ({"max_new_tokens": 1024}, "max_new_tokens: expected 1 to 1023, less than the model's"),
    ({"top_k": 28}, "top_k: expected 1 to 27"),
    ({"control": "push"}, "control: expected switch or strength"),
    ({"view": "none"}, "view: expected compact or full"),
])  # fmt: skip
def test_what_does_not_fit_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TokenEnv(**arguments)


@pytest.mark.parametrize("prompt", [2, -1, "x", 0.5])
def test_a_prompt_that_is_not_there_is_refused(prompt):
    with pytest.raises(ValueError, match="prompt: expected 0 to 1, got"):
        TokenEnv(prompts=["x", "y"]).reset(options={"prompt": prompt})


@pytest.mark.parametrize("perturbed", [np.zeros(3), np.full(27, np.nan), None])
def test_a_perturbation_must_leave_logits(perturbed):
    env = TokenEnv(perturbation=lambda logits, strength, rng: perturbed)
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="perturbation: expected 27 logits"):
        env.step(1)


def test_numbers_that_are_not_finite_stop_the_episode():
    env = TokenEnv(reward=lambda text, logprob: float("nan"), max_new_tokens=1)
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="reward: expected a finite number"):
        env.step(0)
    with pytest.raises(EnvironmentFault, match="finite logits"):
        TokenEnv(table(np.nan, 0.0, 0.0), top_k=2).reset()


def test_a_language_model_gives_the_logits_of_a_whole_forward_pass(weights):
    model = CausalNextToken.from_config(ActorConfig(str(weights / "actor"), dtype="float32"))
    prompt = model.encode("0 1 up 1 1")
    for token_ids in (prompt, [*prompt, 7], [*prompt, 7, 9], [*prompt, 8], prompt[:-1]):
        with torch.no_grad():
            expected = model.model(torch.tensor([token_ids])).logits[0, -1]
        np.testing.assert_allclose(model.logits(token_ids), expected, atol=1e-5)


def test_a_pass_that_is_interrupted_leaves_nothing_behind(weights, monkeypatch):
    model = CausalNextToken.from_config(ActorConfig(str(weights / "actor"), dtype="float32"))
    prompt = model.encode("0 1 up 1 1")
    expected = model.logits([*prompt, 7])
    model.logits(prompt)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(model.model.model.norm, "forward", Mock(side_effect=KeyboardInterrupt))
        model.logits([*prompt, 7])  # which the layers have read by then
    np.testing.assert_allclose(model.logits([*prompt, 7]), expected, atol=1e-5)


def test_close_frees_the_model(weights):
    model = CausalNextToken.from_config(ActorConfig(str(weights / "actor")))
    watched = weakref.ref(model.model)
    env = TokenEnv(model, ["0 1 up 1 1"])
    env.reset(seed=0)
    env.step(1)
    env.close()
    gc.collect()
    assert watched() is None


def test_an_agent_learns_when_to_perturb():
    """Reward 1 for a sentence without the letter that the toy model likes best."""
    model = LetterModel()
    model.table[:] = 0.0
    model.table[:, 0] = 3.0  # 26 tokens share the rest: p(a) is 0.44, and 0.08 when perturbed
    env = TokenEnv(model, reward=lambda text, _: float("a" not in text), top_k=2, max_new_tokens=2)
    agent = PPO(
        "MlpPolicy", env, n_steps=256, batch_size=64, learning_rate=1e-2, seed=0, device="cpu",
        policy_kwargs={"net_arch": [8]},
    )  # fmt: skip
    agent.learn(1024)
    observation, _ = env.reset(seed=0)
    assert agent.predict(observation, deterministic=True)[0] == 1
