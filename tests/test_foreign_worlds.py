"""Games of other packages, on stand-ins that have their faults."""

import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from openenv_servers import running_world

from lactchain import ConfigError, EnvironmentConfig, Episode, Rollouts, make_language_env
from lactchain.data.evaluations import collection_metrics
from lactchain.types import FunctionPolicy
from lactchain_extras.ecosystems import free_text
from lactchain_extras.ecosystems.foreign import Reply
from lactchain_extras.trl import tasks

STAND_INS = Path(__file__).parent / "stand_ins"
TEXTARENA = EnvironmentConfig("textarena:Guess-v0", extractor="utterance")
GEM = EnvironmentConfig("gem:game:Guess-v0", extractor="utterance")
GUESSES = FunctionPolicy(lambda text, seed: str(1 + seed % 9), draws=True)


@pytest.fixture
def stand_ins(monkeypatch):
    """The stand-ins in the place of the packages, which may be installed."""
    free_text.say_once.cache_clear()
    monkeypatch.syspath_prepend(str(STAND_INS))
    for name in ("textarena", "gem"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ("textarena", "gem"):
        sys.modules.pop(name, None)


def world(config):
    return make_language_env(config).env.unwrapped


@pytest.mark.parametrize("config", [TEXTARENA, GEM], ids=lambda config: config.id)
def test_episodes_are_the_same_however_many_are_played_side_by_side(config, stand_ins):
    episodes = [*map(Episode, range(40))]
    alone, together = (Rollouts(config, n).play(GUESSES, episodes) for n in (1, 7))
    assert alone == together
    figures = collection_metrics(alone)
    assert 0 < figures["rollout/success_rate"] < 1


@pytest.mark.parametrize("config", [TEXTARENA, GEM], ids=lambda config: config.id)
def test_a_group_of_one_seed_guesses_one_number_and_other_dice_are_left_alone(config, stand_ins):
    games = [world(config) for _ in range(8)]
    # The fault: without a seed each member of a group has a number of its own.
    for game in games:
        game.game.reset(*(() if config == GEM else (1,)))
    assert len({game.game.number for game in games}) > 1
    random.seed(1), np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1), np.random.seed(1)
    numbers = []
    for game in games:
        game.reset(seed=5)
        game.step("9")
        numbers.append(game.game.number)
    assert (random.random(), np.random.random()) == expected
    assert len({*numbers}) == 1
    assert len({games[0].reset(seed=n) and games[0].game.number for n in range(20)}) > 4
    games[0].reset(seed=5), games[1].reset(seed=5)
    unseeded = [[game.reset() and game.game.number for _ in range(9)] for game in games[:2]]
    assert unseeded[0] == unseeded[1] and len({*unseeded[0]}) > 1


def test_games_in_threads_have_the_dice_of_their_seeds(stand_ins, monkeypatch):
    games = [world(TEXTARENA) for _ in range(4)]

    def play(self, guess):
        first = random.random()
        time.sleep(0.01)  # in which others begin
        return Reply(f"{first} {random.random()} {np.random.random()}", 0.0)

    monkeypatch.setattr(type(games[0]), "play", play)

    def played(game, seed):
        game.reset(seed=seed)
        return [game.step("9")[0] for _ in range(5)]

    alone = [played(game, seed) for seed, game in enumerate(games)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(played, games, range(4))) == alone
    assert len({*map(str, alone)}) == 4


def ended(env, *guesses, seed=1):
    """The end of a game, whose number each guess is told."""
    env.reset(seed=seed)
    number = env.env.unwrapped.game.number
    *_, last = [env.step(guess(number)) for guess in guesses]
    return last


def test_in_textarena_what_pays_in_part_is_no_success_and_an_illegal_end_pays_nothing(stand_ins):
    env = make_language_env(TEXTARENA)
    near, right, nonsense = lambda n: f"[{n % 9 + 1}]", lambda n: f"[{n}]", lambda n: "what"
    _, reward, terminated, truncated, info = ended(env, near, right)
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    _, reward, terminated, truncated, info = ended(env, near, near, near, near)
    assert 0 < reward < 1 and truncated and not terminated and not info["success"]
    text, reward, terminated, truncated, info = ended(env, near, nonsense, nonsense)
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert text.endswith("Invalid Move: no number.")
    assert env.env.unwrapped.game.close()[0][0] > 0.1  # the fault: a good guess pays for nonsense
    env = make_language_env(replace(TEXTARENA, kwargs={"illegal_reward": None}))
    assert ended(env, near, nonsense, nonsense)[1] > 0.1


def test_a_transcript_holds_what_was_said_and_nothing_of_the_episode_before(stand_ins, caplog):
    env = make_language_env(TEXTARENA)
    for _ in range(2):
        text, _ = env.reset(seed=0)
        assert text == "Guess a number of 1 to 9."
        number = env.env.unwrapped.game.number
        text, *_ = env.step(f"[{number + 1}]")
        assert text == f"Guess a number of 1 to 9.\n> [{number + 1}]\nIt is lower ☺ ?."
        assert text in env.observation_space
    told = "Guess-v0: characters that are neither letters nor drawn by games show as ?"
    assert [record.message for record in caplog.records] == [told]
    news = make_language_env(replace(TEXTARENA, kwargs={"transcript": False}))
    news.reset(seed=0)
    assert news.step("[10]")[0] == "It is lower ☺ ?."


def test_in_gem_a_time_limit_is_no_ending(stand_ins):
    env = make_language_env(GEM)
    text, _ = env.reset(seed=1)
    assert text == "Guess a number of 1 to 9.\nEnter your guess."
    number = env.env.unwrapped.game.number
    farthest, *_, near = sorted({*range(1, 10)} - {number}, key=lambda n: -abs(n - number))
    said = str(farthest), "0", str(near)
    *_, (text, reward, terminated, truncated, info) = [env.step(guess) for guess in said]
    assert text.endswith(f"> {near}\nThe maximum number of turns.")
    assert 0 < reward < 1 and truncated and not terminated and not info["success"]
    env.reset(seed=1)
    assert env.step("漢字 is no number")[2]  # any text at all is heard


def test_in_gem_a_win_that_is_paid_in_parts_is_a_success_and_an_illegal_end_is_none(stand_ins):
    near, right, nonsense = lambda n: str(n % 9 + 1), str, lambda n: "what"
    env = make_language_env(GEM)
    _, reward, terminated, _, info = ended(env, near, right)
    assert 0 < reward < 1 and terminated and info["success"]
    assert not ended(env, near, nonsense)[4]["success"]
    all_at_once = make_language_env(replace(GEM, kwargs={"success_reward": 1.0}))
    assert not ended(all_at_once, near, right)[4]["success"]
    assert ended(all_at_once, right)[4]["success"]


@pytest.mark.parametrize(("said", "pay"), [("4", 1.0), ("5", 0.01), ("6", 0.0)])
def test_in_gem_an_answer_is_an_ending_and_credit_for_a_wrong_one_no_success(stand_ins, said, pay):
    env = make_language_env(replace(GEM, id="gem:math:Question"))
    env.reset(seed=0)
    text, reward, terminated, truncated, info = env.step(said)
    assert (reward, terminated, truncated, info["success"]) == (pay, True, False, said == "4")
    assert text == f"2 + 2\n> {said}"


def test_a_list_of_texts_is_played_one_after_the_other(stand_ins):
    env = make_language_env(replace(TEXTARENA, extractor="json_list"))
    env.reset(seed=2)
    number = env.env.unwrapped.game.number
    *_, terminated, _, info = env.step(json.dumps([f"[{number + 1}]", f"[{number}]", "[1]"]))
    assert terminated and info["success"] and info["rewards"] == [0.0, 1.0]


def test_a_game_of_others_can_be_served_in_its_turn(stand_ins):
    episodes = [*map(Episode, range(12))]
    with running_world(TEXTARENA) as url:
        far = EnvironmentConfig(f"openenv:{url}", extractor="utterance")
        played = [Rollouts(config, 3).play(GUESSES, episodes) for config in (TEXTARENA, far)]
        with pytest.raises(ConfigError, match="lists no states, so tasks are seeds"):
            tasks(far)
        assert len(tasks(far, 5)) == 5
    assert played[0] == [replace(t, env_id=TEXTARENA.id) for t in played[1]]


def test_what_cannot_be_made_is_one_line(stand_ins, monkeypatch):
    for config, words in (
        (replace(TEXTARENA, id="textarena:Chess-v0"), "textarena makes no 'Chess-v0' of {}"),
        (replace(GEM, kwargs={"kwargs": {"turns": 3}}), "gem makes no 'game:Guess-v0'"),
        (replace(GEM, kwargs={"turns": 3}), "environment.kwargs: .* does not take"),
    ):
        with pytest.raises(ConfigError, match=words):
            world(config)
    with pytest.raises(ConfigError, match="expected a game of one player, textarena:ForTwo-v0"):
        make_language_env(replace(TEXTARENA, id="textarena:ForTwo-v0")).reset(seed=0)
    monkeypatch.setattr("lactchain.environments.registry.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="gem:game:Guess-v0 needs a package: pip install 'gem-"):
        world(GEM)
