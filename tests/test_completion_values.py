"""What a value model says of each completion, as an evaluation leaves it for people."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from run_folders import MAZE, WORDLE
from script_setups import SHAPE

from lactchain.config.settings import ActorConfig, GuidedActorConfig, RunConfig, recast
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.data.evaluations import CompletionValues, read_values
from lactchain.data.exact_values import estimate_completion_values
from lactchain.data.trajectories import read_trajectories
from lactchain.environments.language import make_language_env
from lactchain.models.actor import LanguageActor
from lactchain.models.prompting import PromptTemplate
from lactchain.models.values import ValueModel
from lactchain.stages import evaluate
from lactchain.stages.evaluate import EvaluateConfig, EvaluationConfig

U_MAZE = replace(MAZE, kwargs={"layout": "u", "max_moves": 3})


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """An actor, and a value model with heads of random weights."""
    folder = tmp_path_factory.mktemp("values")
    prepare_tiny_actor(folder / "actor", SHAPE, U_MAZE)
    actor = ActorConfig(str(folder / "actor"), decoding="scored", dtype="float32", temperature=0.0)
    torch.manual_seed(0)
    model = ValueModel.from_actor(actor, method="ilql", gamma=0.99, num_q_heads=2, start=-5.0)
    for parameter in (*model.q_heads.parameters(), *model.v_head.parameters()):
        torch.nn.init.normal_(parameter)
    model.save(folder / "values")
    return recast(actor, GuidedActorConfig, values=str(folder / "values"))


def test_an_evaluation_by_ranked_completions_says_what_each_is_worth(config, tmp_path):
    job = EvaluateConfig(
        run=RunConfig(run_dir=str(tmp_path)),
        environment=U_MAZE,
        actor=config,
        evaluation=EvaluationConfig(num_samples=0),
    )
    evaluate.main(job)
    found = read_values(tmp_path / "completion_values.json", CompletionValues)
    env = make_language_env(U_MAZE)
    assert list(found.states) == env.view_states()
    assert found.completions == tuple(env.grammar.render([action]) for action in range(4))
    for trajectory in read_trajectories(tmp_path / "trajectories"):
        row = found.advantages[found.states.index(trajectory.infos[0]["state"])]
        assert trajectory.actions[0].text == found.completions[int(np.argmax(row))]


def test_state_values_are_those_of_the_last_token_of_the_prompt(config):
    env = make_language_env(U_MAZE)
    actor = LanguageActor.from_config(config, env.grammar)
    found = estimate_completion_values(actor, env)
    model = ValueModel.load(config.values, config)
    template = PromptTemplate.for_grammar(model.tokenizer, config.strategy, env.grammar)
    for state, value in zip(found.states, found.values, strict=True):
        ids = template.encode(env.reset(options={"state": state})[0])
        hidden = model.trunk.get_decoder()(torch.tensor([ids])).last_hidden_state[:, -1]
        assert value == pytest.approx(model.v_head(hidden).item(), abs=1e-4)


def test_nothing_is_said_where_states_are_not_told_or_completions_not_ranked(config):
    env = make_language_env(U_MAZE)
    ranked = LanguageActor.from_config(config, env.grammar)
    assert estimate_completion_values(ranked, make_language_env(replace(U_MAZE, history=3))) is None
    free = ranked.with_config(replace(config, decoding="free"), env.grammar)
    assert estimate_completion_values(free, env) is None


def test_an_actor_plays_wordle_by_configuration_alone(tmp_path):
    world = replace(WORDLE, kwargs={"words": ["shire", "motto", "level"]})
    prepare_tiny_actor(tmp_path / "actor", SHAPE, world)
    for decoding in ("free", "constrained", "scored"):
        job = EvaluateConfig(
            run=RunConfig(run_dir=str(tmp_path / decoding)),
            environment=world,
            actor=ActorConfig(str(tmp_path / "actor"), decoding=decoding, dtype="float32"),
            evaluation=EvaluationConfig(num_samples=4, num_episodes_per_start=5),
        )
        summary = evaluate.main(job)
        assert summary["num_episodes"] == 5
        assert decoding == "free" or summary["invalid_rate"] == 0
