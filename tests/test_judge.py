"""Critics are judged by the policy's own values: of states, and of the chains in them."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import other_worlds  # noqa: F401  - registers them
import pytest
import torch
from script_setups import GRID
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from lactchain import ConfigError, DataError, Rollouts, RunConfig, SamplerConfig, make_language_env
from lactchain.data.episodes import sampled_episodes
from lactchain.data.sources import write_trajectories
from lactchain.models.actor import LanguageActor
from lactchain.types import Discount
from lactchain_extras.foreign_critics import Numbers, open_critic
from lactchain_extras.judging import Yardstick, judge, judge_by_replays, without_luck
from lactchain_extras.stages import judge as stage

pytestmark = pytest.mark.extras
GAMMA = 0.9


@pytest.fixture(scope="module")
def yardstick(weights, tmp_path_factory):
    """Of an untrained actor in the 2x2 grid."""
    env, settings = make_language_env(GRID), sampler(weights)
    actor = LanguageActor.from_config(settings, env.grammar)
    return Yardstick.of(actor, env, tmp_path_factory.mktemp("policy"), count=8, seed=0)


def sampler(weights):
    actor = str(weights / "actor")
    return SamplerConfig(actor, dtype="float32", decoding="constrained", max_new_tokens=25)


def numbers(yardstick, values):
    """A critic that says these of the states."""
    env = yardstick.env
    pairs = zip(yardstick.states, values, strict=True)
    return Numbers({text: float(v) for state, v in pairs for text in env.texts(state)}, GAMMA)


def exact(yardstick):
    return np.array(yardstick.against(numbers(yardstick, [0.0] * len(yardstick.states)))[0].exact)


def test_the_exact_critic_is_right_in_everything_and_its_negative_in_nothing(yardstick):
    best = judge(numbers(yardstick, exact(yardstick)), yardstick)
    assert best["num_states"] == 48 and best["num_pairs"] > 100
    for name in ("r2", "rho", "slope", "rho_within", "pairs_right"):
        assert best[name] == pytest.approx(1.0), name
    assert [part["pairs_right"] for part in best["by_margin"]] == [1.0] * 4
    turned = judge(numbers(yardstick, -exact(yardstick)), yardstick)
    assert turned["rho"] == pytest.approx(-1) and turned["slope"] == pytest.approx(-1)
    assert turned["pairs_right"] < 0.5


def test_a_shrunk_critic_keeps_the_order_and_one_that_says_the_same_is_worth_nothing(yardstick):
    values = exact(yardstick)
    shrunk = judge(numbers(yardstick, values.mean() + (values - values.mean()) / 4), yardstick)
    assert shrunk["rho"] == pytest.approx(1) and shrunk["slope"] == pytest.approx(4)
    assert shrunk["r2"] == pytest.approx(1 - (3 / 4) ** 2)
    for number in (0.0, 0.1):  # the variance of 48 times .1 is no zero
        same = judge(numbers(yardstick, [number] * 48), yardstick)
        assert np.isnan(same["rho"]) and np.isnan(same["slope"]) and same["r2"] <= 0


def test_what_a_candidate_is_worth_is_what_its_play_earns_and_leads_to(yardstick):
    """Played action by action in the world itself, beside the model's arrays."""
    known = numbers(yardstick, exact(yardstick))
    _, luck, scores, worth = yardstick.against(known)
    assert luck == 0
    np.testing.assert_allclose(scores, worth, atol=1e-6)
    env, completions = make_language_env(GRID), yardstick.completions
    for row, column, expected in zip(yardstick.rows, yardstick.columns, worth, strict=True):
        env.reset(options={"state": yardstick.states[row]})
        text, reward, terminated, _, info = env.step(completions[column])
        rewards, discount = info["rewards"], Discount(GAMMA)
        earned = sum(GAMMA**j * r for j, r in enumerate(rewards)) + reward - sum(rewards)
        after = 0.0 if terminated else float(known.values([text])[0])
        assert earned + discount.after(len(rewards)) * after == pytest.approx(expected, abs=1e-6)


class OfChains(Numbers):
    """A critic of chains that says Q^π itself of candidates."""

    def values(self, observations, actions=None):
        return np.array([self.known[pair] for pair in zip(observations, actions, strict=True)])


def exact_q(yardstick):
    *_, worth = yardstick.against(numbers(yardstick, exact(yardstick)))
    places = zip(yardstick.rows, yardstick.columns, strict=True)
    asked = [(yardstick.texts[row], yardstick.completions[column]) for row, column in places]
    return OfChains(dict(zip(asked, worth, strict=True)), GAMMA, mode="action_value")


def test_the_luck_of_what_is_drawn_is_no_error_of_a_critic_of_chains(weights, tmp_path):
    """V is the mean Q of chains that the policy draws; over many draws of few, all is right."""
    env = make_language_env(GRID)
    actor, found, raw = LanguageActor.from_config(sampler(weights), env.grammar), [], []
    for seed in range(12):
        yardstick = Yardstick.of(actor, env, tmp_path, 8, seed)
        critic = exact_q(yardstick)
        told = judge(critic, yardstick)
        assert told["pairs_right"] == told["rho_within"] == pytest.approx(1)
        found.append([told[name] for name in ("r2", "slope", "rho")])
        raw.append(yardstick.against(critic)[0].r2)
    assert np.mean(raw) < 0.8
    np.testing.assert_allclose(np.mean(found, axis=0), 1, atol=0.1)
    once = Yardstick.of(actor, env, tmp_path, 1, 0)  # of a single draw nobody can tell its luck
    told = judge(exact_q(once), once)
    assert np.isnan([told[name] for name in ("r2", "rmse", "slope", "rho")]).all()


def test_states_that_read_alike_share_their_draws(yardstick, monkeypatch):
    """Thirty states with one text, eighteen with their own: V is one mean, and its luck small."""
    texts = ["alike"] * 30 + [f"state {n}" for n in range(18)]
    rows, columns = np.repeat(np.arange(48), 2), np.tile([0, 1], 48)
    monkeypatch.setattr(Yardstick, "texts", texts)
    monkeypatch.setattr(Yardstick, "completions", ["left", "right"])
    beside = yardstick.against(numbers(yardstick, range(48)))[0]
    monkeypatch.setattr("lactchain_extras.judging.critic_against_exact", lambda *_: beside)
    monkeypatch.setattr(Yardstick, "_exact", lambda *_: np.zeros(96))
    drawn = replace(yardstick, rows=rows, columns=columns, draws=np.ones(96, int))
    scores = {(text, "left"): 0.0 for text in texts} | {(text, "right"): 1.0 for text in texts}
    _, luck, *_ = drawn.against(OfChains(scores, GAMMA, mode="action_value"))
    # The variance of 60 draws around their mean is 1/4, and of two: /59, and /1.
    assert luck == pytest.approx((30 * (1 / 4) / 59 + 18 * (1 / 4) / 1) / 48)


def test_a_reward_model_says_of_a_text_what_transformers_says(weights, tmp_path, yardstick):
    tokenizer = AutoTokenizer.from_pretrained(weights / "actor")
    for labels in (2, 1):
        shape = {"num_labels": labels, "pad_token_id": tokenizer.pad_token_id}
        model = AutoModelForSequenceClassification.from_pretrained(weights / "actor", **shape)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        if labels == 2:
            with pytest.raises(DataError, match="expected a model with one label, got 2"):
                open_critic(f"reward:{tmp_path}", yardstick.env, GAMMA)
    for nothing in (tmp_path / "nowhere", "/etc"):
        with pytest.raises(DataError, match=str(nothing)):
            open_critic(f"reward:{nothing}", yardstick.env, GAMMA)
    (bare := tmp_path / "bare").mkdir()  # a language model, whose head would be drawn
    for file in (weights / "actor").iterdir():
        if file.name != "manifest.json":
            shutil.copy(file, bare)
    shutil.copy(tmp_path / "config.json", bare)
    with pytest.raises(DataError, match=r"weights of every layer, .*score\.weight"):
        open_critic(f"reward:{bare}", yardstick.env, GAMMA)
    critic = open_critic(f"reward:{tmp_path}", yardstick.env, GAMMA)
    texts = yardstick.texts[:3]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.inference_mode():
        expected = model.eval()(**batch).logits[:, 0].numpy()
    np.testing.assert_allclose(critic.values(texts), expected, atol=1e-5)


def test_pairs_and_ranks_within_a_state_are_counted_by_hand(yardstick, monkeypatch):
    rows = np.array([0, 0, 0, 1, 1, 2, 2])
    true = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 7.0, 7.0])
    found = np.array([1.0, 3.0, 2.0, 6.0, 6.0, 8.0, 9.0])
    beside = yardstick.against(numbers(yardstick, range(48)))[0]
    monkeypatch.setattr(Yardstick, "against", lambda *_: (beside, 0.0, found, true))
    told = judge(None, replace(yardstick, rows=rows, columns=rows))
    # State 0 has two of three pairs right and ρ = .5, state 1 a tie; in state 2 all is the same.
    assert (told["num_pairs"], told["pairs_right"]) == (4, 2.5 / 4)
    assert told["rho_within"] == pytest.approx((0.5 + 0.0) / 2)
    assert [part["from"] for part in told["by_margin"]] == [1.0, 1.0, 1.0, 2.0]


def test_luck_of_plays_is_taken_off():
    draws = np.random.default_rng(0)
    values = draws.normal(size=40_000)
    returns = values[:, None] + 3 * draws.normal(size=(40_000, 4))
    told = without_luck(values[:, None], returns)
    assert told["share_not_luck"] == pytest.approx(1 / (1 + 9 / 4), abs=0.03)
    assert told["r2"] == pytest.approx(1, abs=0.05) and told["rho"] == pytest.approx(1, abs=0.05)
    noisy = without_luck((values + draws.normal(size=40_000))[:, None], returns)
    assert noisy["r2"] == pytest.approx(0, abs=0.1)
    assert noisy["rho"] == pytest.approx(2**-0.5, abs=0.06)
    alike = without_luck(values[:, None], np.full((40_000, 4), 0.1))  # but for rounding
    assert np.isnan([alike[name] for name in ("r2", "rho", "share_not_luck")]).all()
    drawn = values[:, None] + 3 * draws.normal(size=(40_000, 4))  # Q of four chains
    told = without_luck(drawn, returns)
    assert told["r2"] == pytest.approx(1, abs=0.1) and told["rho"] == pytest.approx(1, abs=0.05)


def test_replays_come_to_what_the_model_says(weights, yardstick):
    rollouts = Rollouts(replace(GRID, max_chains=60), 256)  # no play is cut
    actor = LanguageActor.from_config(sampler(weights), rollouts.env.grammar)
    known = {"exact": numbers(yardstick, exact(yardstick))}
    told = judge_by_replays(known, actor, rollouts, yardstick.states, 24, seed=1)["exact"]
    assert (told["num_states"], told["num_replays"]) == (48, 24)
    assert told["rho"] > 0.8 and told["r2"] > 0.7

    asked = []

    def q_of(texts, chains):  # as if what is answered made no difference
        asked.extend(zip(texts, chains, strict=True))
        return known["exact"].values(texts)

    of_chains = SimpleNamespace(**vars(known["exact"]) | {"mode": "action_value", "values": q_of})
    both = judge_by_replays(known | {"Q": of_chains}, actor, rollouts, yardstick.states, 24, seed=1)
    assert both["exact"] == told and both["Q"] == pytest.approx(told)
    assert len(asked) == 48 * 24
    assert {chain for _, chain in asked} <= set(rollouts.env.grammar.completions())


def settings(weights, run_dir, **changes):
    base = stage.JudgeConfig(RunConfig(str(run_dir)), GRID, sampler(weights))
    return replace(base, num_candidates=4, num_starts=8, num_replays=2, **changes)


def test_numbers_that_others_bring_are_judged_and_refused_where_they_are_none(weights, tmp_path):
    stage.main(settings(weights, tmp_path / "states"))
    listed = json.loads((tmp_path / "states/states.json").read_text())
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps({"values": [state["value"] for state in listed["states"]]}))
    config = settings(weights, tmp_path / "run", critics=(str(mine),))
    told = stage.main(config)
    assert told[f"{mine}/r2"] == pytest.approx(1) and told[f"{mine}/rho"] == pytest.approx(1)
    judged = json.loads((tmp_path / "run/judgement.json").read_text())
    assert judged[str(mine)]["r2"] == told[f"{mine}/r2"]
    assert "<svg" in (tmp_path / "run/pairs_in_order.svg").read_text()
    assert stage.main(config) == told  # done, and not done again
    for number, content in enumerate(([1.0], [True] * 48, {"a": 1}, ["1"] * 48, [1e999] * 48)):
        mine.write_text(json.dumps({"values": content}))
        with pytest.raises(DataError, match="expected values: a list of 48 numbers"):
            stage.main(replace(config, run=RunConfig(run_dir=str(tmp_path / f"bad{number}"))))
    mine.write_text(json.dumps({"values": [*range(48)]}))
    alike = replace(GRID, template="at {x},{y}")
    with pytest.raises(DataError, match="one for states that read alike, got 0 and 1 of 'at "):
        stage.main(settings(weights, tmp_path / "alike", environment=alike, critics=config.critics))


@pytest.mark.parametrize("how", [{"decoding": "free"}, {"temperature": 0.0}])
def test_a_policy_that_cannot_be_enumerated_is_replayed_from_start_states(weights, tmp_path, how):
    config = settings(weights, tmp_path / "run", actor=replace(sampler(weights), **how))
    assert stage.main(config) == {}
    listed = json.loads((tmp_path / "run/states.json").read_text())["states"]
    assert len(listed) == 48 and {state["value"] for state in listed} == {None}


@pytest.mark.parametrize("history", [1, 3])
def test_texts_of_recorded_episodes_are_replayed_in_the_place_of_start_states(
    weights, tmp_path, monkeypatch, history
):
    world = replace(GRID, history=history, template=None)
    rollouts = Rollouts(world, 8)
    actor = LanguageActor.from_config(sampler(weights), rollouts.env.grammar)
    episodes = rollouts.play(actor, sampled_episodes(rollouts.env, 6, seed=0))
    write_trajectories(tmp_path / "played.parquet", episodes)
    asked = {text for episode in episodes for text in episode.observations[:-1]}
    seen = []

    def values(texts):
        seen.append(list(texts))
        return np.arange(len(texts))

    def opened(name, env, gamma):
        return SimpleNamespace(mode="value", gamma=gamma, discount_per="action", values=values)

    monkeypatch.setattr("lactchain_extras.foreign_critics.open_critic", opened)
    config = settings(weights, tmp_path / "run", environment=world, critics=("a",))
    stage.main(replace(config, trajectories=str(tmp_path / "played.parquet"), num_starts=10_000))
    assert set(seen[0]) == asked and len(seen[0]) == len(asked)
    told = json.loads((tmp_path / "run/judgement.json").read_text())["a"]
    assert told["num_states"] == len(asked)
    starts = {rollouts.observe([state])[0] for state in rollouts.env.start_states()}
    assert asked - starts  # what is told in the middle of an episode is read again, too
    with pytest.raises(ValueError, match="critics: expected no numbers of states beside traj"):
        replace(config, critics=("a.json",), trajectories="played")


def test_a_world_without_states_or_starts_to_compare_is_refused_before_play(weights, tmp_path):
    unlisted = replace(GRID, id="others/Blackjack-v0", template=None, kwargs={}, max_chain_length=1)
    one_start = replace(GRID, kwargs={"size": 2, "start": [0, 0, 0], "goal": [1, 1]})
    free = replace(sampler(weights), decoding="free")
    refused = (unlisted, "a world that lists states"), (one_start, "two .* to compare, got 1")
    for number, (world, words) in enumerate(refused):
        folder = tmp_path / str(number)
        with pytest.raises(ConfigError, match=f"expected {words}"):
            stage.main(settings(weights, folder, environment=world, actor=free))
        assert not (folder / "states.json").exists()  # written before anything is played


def test_of_a_single_play_or_start_nobody_can_tell_luck():
    for name in ("num_replays", "num_starts"):
        with pytest.raises(ValueError, match=f"{name}: expected at least 2"):
            stage.JudgeConfig(**{name: 1})
