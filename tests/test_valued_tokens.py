"""What a run keeps of a value model's tokens: true of its own final model, of telling episodes."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from browser import Visit
from run_folders import MAZE, play
from script_setups import SHAPE
from test_value_trainers import alone
from training_setups import changed

from lactchain import Action, OptimalChains, RandomChains, Run, make_language_env
from lactchain.config.settings import ActorConfig, GuidedActorConfig, RunConfig
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.data.sources import read_trajectories, write_trajectories
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.stages import evaluate
from lactchain.stages.evaluate import EvaluateConfig, EvaluationConfig
from lactchain_extras.explorer.inspections import read_inspection
from lactchain_extras.explorer.report import write_report
from lactchain_extras.stages import train_ilql, train_mc
from lactchain_extras.stages.train_ilql import TrainILQLConfig
from lactchain_extras.stages.train_mc import TrainMCConfig
from lactchain_extras.token_values import recording as token_recording
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.token_values.recording import MAX_EPISODES, picked, record_token_values
from lactchain_extras.token_values.settings import ILQLConfig

U_MAZE = replace(MAZE, kwargs={"layout": "u", "max_moves": 9})
JOBS = {
    "ilql": (train_ilql, TrainILQLConfig(ilql=ILQLConfig(tau=0.3))),
    "mc": (train_mc, TrainMCConfig()),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An actor, and episodes of the maze: wandering ones, and one that goes straight."""
    folder = tmp_path_factory.mktemp("values")
    prepare_tiny_actor(folder / "actor", SHAPE, U_MAZE)
    env = make_language_env(U_MAZE)
    wandering, straight = RandomChains(env.grammar), OptimalChains(env)
    said = [lambda text, n=n: wandering.act([text], [n])[0].text for n in range(12)]
    said.append(lambda text: straight.act([text], [0])[0].text)
    played = [play(env, completions, seed) for seed, completions in enumerate(said)]
    episodes = [replace(e, actions=tuple(Action(a.text) for a in e.actions)) for e in played]
    write_trajectories(folder / "trajectories/0.parquet", episodes)
    return folder


@pytest.fixture(scope="module")
def trained(folder):
    """Run folders of both methods, by name."""
    common = {
        "environment": U_MAZE,
        "actor": ActorConfig(str(folder / "actor"), dtype="float32"),
        "trajectories": str(folder / "trajectories"),
        "training": changed(num_epochs=8, learning_rate=0.03),
    }
    for name, (stage, config) in JOBS.items():
        stage.main(replace(config, run=RunConfig(run_dir=str(folder / name)), **common))
    return {name: folder / name for name in JOBS}


@torch.no_grad()
def values_of(model, template, prompt, action):
    """Q and V of the tokens of one completion, along a plain sequence without tree or batch."""
    ids, (said,) = template.encode(prompt), encode_completions([action], model.tokenizer)
    here = slice(len(ids) - 1, -1)
    q, v = alone(model, ids + said, target=bool(model.target))[0], alone(model, ids + said)[1]
    return q.amin(0)[here][range(len(said)), said], v[here]


def template_of(model):
    grammar = make_language_env(U_MAZE).grammar
    return PromptTemplate(model.tokenizer, model.meaning.strategy, grammar)


def check(found, model, episodes):
    template = template_of(model)
    rows = found.decisions.to_pylist()
    for row in rows:
        episode, decision = episodes[row["episode"]], row["decision"]
        prompt, action = episode.observations[decision], episode.actions[decision]
        assert (row["prompt"], row["completion"]) == (prompt, action.text)
        assert row["reward"] == episode.rewards[decision]
        q, v = values_of(model, template, prompt, action)
        assert row["q"] == pytest.approx(q.tolist(), abs=1e-5)
        assert row["v"] == pytest.approx(v.tolist(), abs=1e-5)
        assert "".join(row["tokens"]).startswith(action.text)
    told = np.concatenate([row["q"] for row in rows])
    assert np.ptp(told) > 1e-4
    return rows


@pytest.mark.parametrize("name", JOBS)
def test_the_values_of_tokens_are_those_of_the_runs_own_final_model(trained, folder, name):
    found = read_inspection(trained[name] / "token_values")
    model = ValueModel.load(trained[name] / "values")
    episodes = read_trajectories(folder / "trajectories")
    rows = check(found, model, episodes)
    assert found.meta["method"] == name and found.meta["of"] == len(episodes) == 13
    assert len({row["episode"] for row in rows}) == MAX_EPISODES
    best = next(row for row in rows if row["chosen"] == "best")
    assert best["return"] == max(e.episode_return for e in episodes)


def test_an_evaluation_guided_by_values_tells_those_of_what_it_played(trained, folder, tmp_path):
    values = str(trained["ilql"] / "values")
    how = {"dtype": "float32", "temperature": 0.0, "decoding": "constrained"}
    actor = GuidedActorConfig(str(folder / "actor"), values=values, **how)
    run, settings = RunConfig(run_dir=str(tmp_path)), EvaluationConfig(num_samples=0)
    evaluate.main(EvaluateConfig(run=run, environment=U_MAZE, actor=actor, evaluation=settings))
    found = read_inspection(tmp_path / "token_values")
    check(found, ValueModel.load(values), read_trajectories(tmp_path / "trajectories"))


def test_the_best_the_worst_and_the_first_episodes_are_looked_at(folder):
    episodes = read_trajectories(folder / "trajectories")
    shown = picked(episodes)
    returns = [episode.episode_return for episode in episodes]
    best, worst = (next(n for n, w in shown.chosen.items() if w == x) for x in ("best", "worst"))
    assert returns[best] == max(returns) and returns[worst] == min(returns)
    others = [n for n in shown.chosen if n not in (best, worst)]
    assert others == [n for n in range(13) if n not in (best, worst)][: MAX_EPISODES - 2]
    assert picked(episodes[:1]).chosen == {0: "best"} and picked([]).chosen == {}


def test_of_a_long_episode_the_beginning_is_looked_at(folder, trained, tmp_path, monkeypatch):
    """So that what is read, and so the cost, has a bound."""
    monkeypatch.setattr(token_recording, "MAX_DECISIONS", 3)
    model = ValueModel.load(trained["mc"] / "values")
    episodes = read_trajectories(folder / "trajectories")
    whole = read_inspection(trained["mc"] / "token_values").decisions.to_pylist()
    record_token_values(Run(tmp_path, {"run_id": "x"}, None), model, template_of(model), episodes)
    rows = read_inspection(tmp_path / "token_values").decisions.to_pylist()
    assert len(whole) > len(rows) == sum(min(3, len(one)) for one in picked(episodes).trajectories)
    q_of = {(row["episode"], row["decision"]): row["q"] for row in whole}
    for row in rows:
        assert row["q"] == pytest.approx(q_of[row["episode"], row["decision"]], abs=1e-5)


def test_the_page_shows_of_each_token_the_models_own_values(trained, folder, browser):
    """What is read aloud, and what is shown where the arrow keys lead, in a real browser."""
    model = ValueModel.load(trained["ilql"] / "values")
    chosen, episodes, _ = picked(read_trajectories(folder / "trajectories"))
    best = episodes[[*chosen.values()].index("best")]
    said, template = zip(best.observations, best.actions, strict=False), template_of(model)
    told = [values_of(model, template, prompt, action) for prompt, action in said]
    q, v = (np.concatenate(part) for part in zip(*told, strict=True))
    visit = Visit(browser, write_report(trained["ilql"]))
    assert "tokens by ILQL" in visit.text("#summary")
    assert "recorded decisions" in visit.text("#summary")
    visit.open("tokens")
    labels = visit.page.locator("table.valued [data-token]").evaluate_all(
        "tokens => tokens.map(token => token.getAttribute('aria-label'))"
    )
    shown = np.array([numbers_in(label) for label in labels])
    np.testing.assert_allclose(shown, np.column_stack([q, v, q - v]), rtol=2e-3, atol=2e-3)
    visit.page.focus("[data-token='0']")
    visit.page.keyboard.press("ArrowRight")
    assert numbers_in(visit.text("#token-value")) == pytest.approx(shown[1])
    q_there, v_there, _ = (f"{number:.4g}".replace("-", "−") for number in shown[1])
    here = f"token2Q{q_there}V{v_there}"
    visit.page.locator(".u-legend", has_text=here).wait_for()  # a frame later
    visit.close()


def numbers_in(text):
    """Q, V and advantage, as they are told last."""
    return [float(x.replace("−", "-")) for x in re.findall(r"[−+]?\d+(?:\.\d+)?", text)[-3:]]
