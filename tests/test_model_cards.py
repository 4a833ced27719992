"""Model cards tell what weights are, how good, and how they are loaded; nothing leaves unasked."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from huggingface_hub import ModelCard
from script_setups import GRID
from test_text_worlds import Guess

from lactchain import ActorConfig, EnvironmentConfig, Run, load_policy, make_language_env
from lactchain.data.evaluations import EpisodeResult, StateValues
from lactchain.data.intervals import error_sums, r2, resampled_interval, rmse, share_interval
from lactchain.stages.train_bc import TrainBCConfig
from lactchain.storage.files import read_json
from lactchain.storage.manifests import verify_manifest, write_manifest
from lactchain_extras.cards import model_cards
from lactchain_extras.cards.model_cards import Base, success_figures

CARDS = ["pipeline/actor", "pipeline/critic", "pipeline/warm_start/actor", "simpo/actor"]
CARDS += ["mc/values", "export/model", "export_all/model", "export_critic/model"]


def card_of(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


@pytest.mark.parametrize("name", CARDS)
def test_the_lines_that_load_weights_do(runs, name):
    run, place = name.split("/", 1)
    folder = (runs / run).resolve() / place
    text = card_of(folder).text
    (lines,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert repr(str(folder)) in lines.replace(str(folder.resolve()), str(folder))
    defined: dict = {}
    exec(lines, defined)
    assert {"completion", "critic", "values", "model"} & defined.keys()


def test_a_card_may_be_edited(runs, tmp_path):
    folder = shutil.copytree((runs / "pipeline/actor").resolve(), tmp_path / "actor")
    (folder / "README.md").write_text("mine")
    files = verify_manifest(folder)["files"]
    assert "README.md" not in files and load_policy(folder).act(["1 0 left 0 1"], [0])


@pytest.mark.parametrize("name", CARDS)
def test_a_card_says_base_training_figures_limits_and_licence(runs, name):
    card = card_of(runs / name)
    for part in ("Training", "Figures", "How to load", "Limits", "Licence"):
        assert f"\n## {part}\n" in card.text
    assert card.data.license == "mit" and "lactchain" in card.data.tags
    assert card.data.base_model is None  # a folder's path is no model of the hub
    assert "The base is under `mit`" in card.text
    assert not re.search(r"\{\{|\{%|None|\n\n\n", card.text)
    assert "learning_rate: 0.001" in card.text and "lactchain/GridWorld-v0" in card.text


def figures_on(folder: Path) -> dict:
    """What a card says was measured, by its name."""
    return {found.metric_type: found for found in card_of(folder).data.eval_results}


def test_a_pipelines_actor_has_its_figures_exactly_or_with_intervals(runs):
    summary = read_json(runs / "pipeline/summary.json")
    figures = figures_on(runs / "pipeline/actor")
    for name in ("success_rate_after", "success_within_2_chains"):
        assert figures[name].metric_value == summary[name]
        assert figures[name].metric_args == {"of": "all 48 start states, exactly"}
    assert figures["success_rate_before"].metric_value == summary["success_rate_before"]
    share, sampled = summary["invalid_rate_after"], figures["invalid_rate_after"]
    interval = list(share_interval(round(share * 100), 100))
    assert sampled.metric_value == share
    assert sampled.metric_args == {"of": "100 sampled completions", "interval_95": interval}
    rate = summary["success_rate_after"]
    row = f"| success rate after | {rate:.4g} | none | all 48 start states, exactly |"
    assert row in card_of(runs / "pipeline/actor").text
    assert "Not evaluated" in card_of(runs / "pipeline/warm_start/actor").text


def test_figures_of_a_world_with_dice_have_intervals_and_those_of_others_are_exact():
    grid = [EpisodeResult({"x": n}, n < 3, 2, 6, shortest=3, held_back=n == 0) for n in range(4)]
    exact = success_figures(grid * 2, exactly=True)
    assert exact == {
        f"{name}{part}": (share, f"all {count} start states, exactly", None)
        for name in ("success_rate_after", "success_within_2_chains")
        for part, share, count in (("", 0.75, 4), ("_practised", 2 / 3, 3), ("_held_back", 1.0, 1))
    }
    slippery = [EpisodeResult({"cell": 0}, n < 3, 2, 6) for n in range(4)]
    drawn = success_figures(slippery, exactly=False)
    assert drawn["success_rate_after"] == (0.75, "4 episodes", share_interval(3, 4))


def test_a_critics_figures_lie_in_their_intervals(runs):
    stage = runs / "pipeline/round_1/critic"
    summary, figures = read_json(stage / "summary.json"), figures_on(stage / "critic")
    for name in ("eval_r2", "eval_r2_ceiling", "eval_rmse"):
        interval = figures[name].metric_args["interval_95"]
        assert interval == summary[f"{name}_interval"]
        assert interval[0] < figures[name].metric_value == summary[name] < interval[1]
    assert figures["critic_r2"].metric_value == summary["critic_r2"]


def test_an_export_keeps_the_figures_and_the_training_of_its_actor(runs):
    actor, exported = card_of(runs / "pipeline/actor"), card_of(runs / "export_all/model")
    assert exported.data.eval_results == actor.data.eval_results
    seeds = [re.findall(r"\n\| seed \| (.*) \|", card.text) for card in (actor, exported)]
    assert seeds[0] == seeds[1] != []
    texts = [re.search(r"## Training\n.*?(?=## )", c.text, re.DOTALL)[0] for c in (actor, exported)]
    assert texts[0] == texts[1]
    assert "| share of update kept | 1" in card_of(runs / "export/model").text
    assert "a LoRA adapter of rank 2" in card_of(runs / "simpo/actor").text
    policies = map(load_policy, (runs / "export/model", runs / "simpo/actor"))
    assert len({tuple(policy.template.encode("1 0")) for policy in policies}) == 1


def test_the_licence_is_that_of_the_models_own_card_and_is_handed_on(tmp_path, monkeypatch):
    card = "---\nlicense: cc-by-nc-4.0\nbase_model: {}\ntags: [{}]\n---\n# It\n".format
    for name, text in (
        ("weights/some/model", card("other/model", "text")),
        ("trained", card("some/model", "lactchain")),
        ("broken", "---\n[not yaml\n---\n"),
    ):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "README.md").write_text(text)
    write_manifest(tmp_path / "weights/some/model", {"made_from": {"hub": "some/model"}})
    monkeypatch.chdir(tmp_path)
    for base in (Base.of("some/model"), Base.of(tmp_path / "trained")):
        assert (base.hub_id, base.licence) == ("some/model", {"license": "cc-by-nc-4.0"})
    for name in ("weights", "broken"):
        assert Base.of(tmp_path / name).licence == {}


def written(folder: Path, config: TrainBCConfig) -> str:
    """The card of an actor that a run has only begun with."""
    with Run.open(folder, config) as run:
        (folder / "actor").mkdir()
        model_cards.write(config, run, "actor", {})
    return (folder / "actor/README.md").read_text()


def test_a_card_lists_no_actions_of_any_text_and_no_secret(weights, tmp_path, monkeypatch):
    actor = ActorConfig(str(weights / "actor"))
    monkeypatch.setitem(gym.registry, "Riddle-v0", EnvSpec("Riddle-v0", Guess))
    world = EnvironmentConfig("Riddle-v0", extractor="utterance")
    text = written(tmp_path / "riddle", TrainBCConfig(environment=world, actor=actor))
    assert "| actions | any text; 1 at most in a list |" in text
    monkeypatch.setattr(model_cards, "make_language_env", lambda _: make_language_env(GRID))
    secret = replace(GRID, kwargs={"size": 2, "api_key": "hunter2"})
    text = written(tmp_path / "grid", TrainBCConfig(environment=secret, actor=actor))
    assert "`{'size': 2, 'api_key': '<redacted>'}`" in text and "hunter2" not in text


def test_a_licence_and_a_quantisation_that_are_known_are_told_and_else_that_they_are_not(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    config = TrainBCConfig(environment=GRID, actor=ActorConfig(str(base)))
    assert "does not say under which licence" in written(tmp_path / "unknown", config)
    facts = {"licence": "apache-2.0", "quantisation": "Q4_K, dequantised"}
    write_manifest(base, {"made_from": {"hub": "some/model"}, **facts})
    text = written(tmp_path / "known", config)
    assert "is under `apache-2.0` (see https://huggingface.co/some/model). Its terms hold" in text
    assert "Q4_K, dequantised; read as `auto`" in text


def test_a_shares_interval_is_wilsons():
    assert share_interval(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert share_interval(0, 48)[0] == 0 and share_interval(48, 48)[1] == 1
    for limit in share_interval(3, 20):  # the limits are those of the test that does not refuse .15
        variance = limit * (1 - limit) / 20
        assert (0.15 - limit) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-6)


def test_a_resampled_interval_is_that_of_a_loop_and_of_theory():
    draws = np.random.default_rng(1)
    values = draws.normal(3, 2, size=400)
    sums = np.stack([values, np.ones(400)], axis=1)
    low, high = resampled_interval(sums, lambda s: s[0] / s[1])
    assert (low, high) == pytest.approx((values.mean() - 0.196, values.mean() + 0.196), abs=0.03)
    loop = [draws.choice(values, 400).mean() for _ in range(1000)]
    assert (low, high) == pytest.approx(tuple(np.percentile(loop, [2.5, 97.5])), abs=0.03)
    nothing = resampled_interval(np.zeros((3, 2)), lambda s: s[0] / s[1])
    assert np.isnan(nothing).all()


def test_scores_of_sums_are_those_of_the_values():
    critic, exact = np.array([1.0, 2, 3, 5]), np.array([1.5, 2, 2, 5])
    values = StateValues(({},) * 4, tuple(critic), tuple(exact), 0.9)
    sums = error_sums(critic, exact).sum(axis=0)
    assert (r2(sums), rmse(sums)) == pytest.approx((values.r2, values.rmse))
