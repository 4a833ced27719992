"""Utterances, histories, worlds' own rules for nonsense, worlds that speak text themselves."""

import string

import gymnasium as gym
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit, TransformReward

from lactchain import Chain, ChainGrammar, ConfigError, Rejection, make_extractor
from lactchain.environments.language import INVALID_FEEDBACK, LanguageEnv, TextView, language_env

NAMES = ("move up", "move down")


class Counter(gym.Env):
    """Counts up or down from 0; over at 3."""

    observation_space, action_space = spaces.Discrete(7, start=-3), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.count, {}

    def step(self, action):
        if isinstance(action, str):  # the rule for nonsense: the count starts again, at a price
            self.count = 0
            return self.count, -4.0, False, False, {}
        self.count += 1 if action == 0 else -1
        return self.count, -1.0, self.count == 3, False, {}


def counter_view(**changes):
    view = {
        "action_names": NAMES,
        "template": "{count}\n",
        "describe": lambda env, observation, info: {"count": observation},
    }
    return TextView(**view | changes)


class Guess(gym.Env):
    """Guess a number in words: a world that speaks text itself."""

    observation_space = spaces.Text(40, min_length=0, charset=string.printable + "é")
    action_space = spaces.Text(10, charset=string.ascii_lowercase)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.secret = ("one", "two")[self.np_random.integers(2)]
        return "One or two, mon ami ?", {}

    def step(self, action):
        right = action == self.secret
        return f"You said {action}.", float(right), right, False, {}


def test_an_utterance_is_one_action_letter_for_letter():
    extractor = make_extractor("utterance", NAMES, 9)
    assert extractor.grammar == ChainGrammar(NAMES, 1, opening="", separator="", closing="\n")
    for text in ("move down\n", "move down"):
        assert extractor.parse(text) == Chain((1,), (0, 9))
    others = ("", "\n", "move", " move up", "move up ", "move up\n\n", "Move up", "move upmove up")
    for text in others:
        reading = extractor.parse(text)
        assert isinstance(reading, Rejection) and reading.reason == "illegal_action"


def test_without_names_any_text_is_an_action():
    assert make_extractor("utterance", ()).parse("Hé! [x]\n").utterances == ("Hé! [x]",)
    assert make_extractor("json_list", ()).parse('["a", "\\u0062\\n"]').utterances == ("a", "b\n")
    assert make_extractor("json_list", (), 1).parse('["a", "b"]').reason == "too_long"
    moves = make_extractor("json_object", ()).parse('{"moves": ["say \\"x\\""]}').utterances
    assert moves == ('say "x"',)


def test_a_world_may_have_its_own_rule_for_text_that_is_no_action():
    view = counter_view(step_takes_text=True)
    env = LanguageEnv(Counter(), view, extractor="utterance", invalid_penalty=-9, chain_cost=0.5)
    env.reset()
    assert env.step("move up\n")[:2] == ("1\n", -1.5)
    text, reward, *_, info = env.step("fly\n")
    assert (text, reward) == ("0\n", -4.5)
    assert (info["invalid_action"], info["executed"], info["rewards"]) == (True, [], [])


@pytest.mark.parametrize("env_id", ["lactchain/Maze-v0", "lactchain/Wordle-v0"])
def test_what_wraps_a_world_sees_its_rule_for_nonsense(env_id):
    world = TransformReward(TimeLimit(gym.make(env_id), 3), lambda reward: 10 * reward)
    env = LanguageEnv(world, extractor="utterance")
    plain = language_env(env_id, extractor="utterance")
    env.reset(seed=0)
    plain.reset(seed=0)
    for step in range(3):
        _, reward, terminated, truncated, info = env.step("what?")
        _, plain_reward, *_, plain_info = plain.step("what?")
        assert info["invalid_action"] and info["state"] == plain_info["state"]
        assert (reward, terminated) == (10 * plain_reward, False)
        assert truncated == (step == 2)


@pytest.mark.parametrize(("history", "completions", "expected"), [
    (0, ["move up\n"], "0\nmove up\n1\n"),
    (0, ["move up\n", "move up"], "0\nmove up\n1\nmove up\n2\n"),  # a line of its own
    (0, ["move up\n", "fl\x00é\n"], "0\nmove up\n1\nfl?é\n1\n"),
    (3, ["move up\n", "move up\n"], "1\nmove up\n2\n"),
    (3, ["move up\n", "move up\n", "move down\n"], "2\nmove down\n1\n"),
])  # fmt: skip
def test_a_history_holds_the_newest_observations_and_completions(history, completions, expected):
    env = LanguageEnv(Counter(), counter_view(), extractor="utterance", history=history)
    env.reset()
    for completion in completions:
        text = env.step(completion)[0]
    assert text == expected and env.reset()[0] == "0\n"


def test_nonsense_may_wipe_the_history_and_an_ending_stands_alone():
    view = counter_view(
        step_takes_text=True,
        invalid_wipes_history=True,
        ending=lambda env: "Success\n" if env.unwrapped.count == 3 else None,
    )
    env = LanguageEnv(Counter(), view, extractor="utterance", history=0)
    env.reset()
    env.step("move up\n")
    assert env.step("fly\n")[0] == "0\n" and env.step("move up\n")[0] == "0\nmove up\n1\n"
    env.step("move up\n")
    assert env.step("move up\n")[:3] == ("Success\n", -1.0, True)


def test_a_world_that_speaks_text_needs_no_view(monkeypatch):
    monkeypatch.setitem(gym.registry, "my/Guess-v0", EnvSpec("my/Guess-v0", Guess))
    env = language_env("my/Guess-v0", extractor="utterance", history=0)
    text, _ = env.reset(seed=0)
    assert text == "One or two, mon ami ?"
    wrong, right = ("two", "one") if env.env.unwrapped.secret == "one" else ("one", "two")
    text, reward, terminated, _, info = env.step(f"{wrong}\n")
    assert text == f"One or two, mon ami ?\n{wrong}\nYou said {wrong}."
    assert (reward, terminated, info["executed"]) == (0.0, False, [wrong])
    text, reward, *_, info = env.step("THREE")
    assert info["invalid_reason"] == "illegal_action"
    assert text.endswith(f"You said {wrong}.{INVALID_FEEDBACK}")
    _, reward, terminated, _, info = env.step(right)
    assert (reward, terminated, info["success"]) == (1.0, True, None)


def test_a_text_world_without_states_is_not_put_back():
    env = LanguageEnv(Guess(), extractor="utterance")
    assert env.reset(seed=0)[1]["state"] is None
    with pytest.raises(ConfigError, match="states"):
        env.view_states()
    with pytest.raises(ConfigError, match="set_state"):
        env.reset(options={"state": {}})


def test_what_a_text_world_says_at_length_is_heard_to_the_end():
    class Talker(Guess):
        observation_space = spaces.Text(9000, charset="a")

        def reset(self, *, seed=None, options=None):
            return "a" * 9000, {}

    env = LanguageEnv(Talker(), extractor="utterance")
    text, _ = env.reset()
    assert len(text) == 9000 and text in env.observation_space
    assert text + INVALID_FEEDBACK in env.observation_space


def test_a_text_world_plays_chains_and_named_actions_too():
    env = LanguageEnv(Guess())
    env.reset(seed=0)
    *_, terminated, _, info = env.step('["one", "two", "three"]')
    assert terminated and info["executed"] == ["one", "two"][: len(info["executed"])]
    env = LanguageEnv(Guess(), action_names=("one", "two"), extractor="utterance")
    env.reset(seed=0)
    assert env.step("three")[-1]["invalid_action"]
    assert env.step("one\n")[-1]["executed"] == ["one"]
    assert env.grammar.action_names == ("one", "two")


def test_other_action_spaces_are_refused(monkeypatch):
    monkeypatch.setattr(Counter, "action_space", spaces.Box(-1, 1))
    with pytest.raises(ConfigError, match="expected discrete actions, or text, got Box"):
        LanguageEnv(Counter(), counter_view())
