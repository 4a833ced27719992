"""What benchmarks/peers.py rests on: one count of steps, exact groups, gradients, resuming."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import peer_grpo
import peer_methods
import peer_report
import peers
import pytest
import torch
from datasets import Dataset
from peer_worlds import WORLDS, World
from trl import GRPOTrainer
from trl_setups import GRID, cloned_mistral, standing_in

from lactchain.config.settings import ActorConfig, PreferenceConfig, RunConfig, SamplerConfig
from lactchain.data.episodes import sampled_episodes
from lactchain.data.preferences import read_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.scripted import RandomChains
from lactchain.environments.views import shipped_view
from lactchain.models.actor import LanguageActor
from lactchain.models.prompting import PromptTemplate
from lactchain.runs.run import Run
from lactchain.stages.make_preferences import MakePreferencesConfig
from lactchain.stages.pipeline_config import ActorStageConfig, RunPipelineConfig
from lactchain_extras.trl import episode_return, rollout, tasks

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")


class Counted(gym.Wrapper):
    """A world that counts the actions it plays, over all of its copies."""

    played = 0

    def step(self, action):
        Counted.played += 1
        return super().step(action)


def counted_grid(**kwargs):
    grid = gym.make("lactchain/GridWorld-v0", **kwargs)
    return LanguageEnv(Counted(grid), shipped_view(grid.unwrapped))


if "tests/CountedGrid-v0" not in gym.registry:
    gym.register("tests/CountedGrid-v0", counted_grid)
COUNTED = replace(GRID, id="tests/CountedGrid-v0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny") / "actor"
    cloned_mistral(folder)[0].save_pretrained(folder)
    (folder / "manifest.json").unlink()  # of the weights before
    return folder


@pytest.fixture(scope="module")
def config(folder):
    actor = ActorConfig(model=str(folder), max_new_tokens=16, dtype="float32")
    return RunPipelineConfig(environment=GRID, actor=actor)


@pytest.fixture
def course(config, tmp_path):
    world = World((), budget=600, cpu_seconds=1e9)
    return peer_methods.Course(tmp_path / "method", world, config, math.inf)


@pytest.fixture
def mistral(folder):
    from transformers import MistralForCausalLM

    from lactchain.models.loading import load_tokenizer

    return MistralForCausalLM.from_pretrained(folder), load_tokenizer(folder, padding_side="left")


# --- steps ---------------------------------------------------------------------------------------


def refused(config, texts):
    """How many of the completions are no chain, each of which counts as one step."""
    env = make_language_env(config)
    return sum(not hasattr(env.read(text), "actions") for text in texts)


def test_steps_of_episodes_are_the_actions_that_the_world_has_played(mistral, config):
    actor = LanguageActor(*mistral, config.actor, make_language_env(GRID).grammar)
    Counted.played = 0
    rollouts = Rollouts(COUNTED, 64)
    starts = peer_methods.starts_of_groups(rollouts, [], 48, seed=0)
    groups = peer_methods.play_groups(actor, rollouts, starts, 4, seed=0)
    texts = [action.text for group in groups for t in group for action in t.actions]
    steps = sum(map(peer_methods.num_env_steps, groups))
    assert steps == Counted.played + refused(GRID, texts) > 192


def test_steps_of_grpos_episodes_are_counted_in_the_same_way(mistral):
    torch.manual_seed(0)
    Counted.played = 0
    played = rollout(COUNTED, 16)([row["prompt"] for row in tasks(GRID)], standing_in(mistral))
    turns = [
        turns_of(ids, mask, mistral[1])
        for ids, mask in zip(played["completion_ids"], played["env_mask"], strict=True)
    ]
    assert max(map(len, turns)) == 3
    no_chains = refused(GRID, [text for said in turns for text in said])
    assert sum(played["num_actions"]) == Counted.played + no_chains


def turns_of(ids, mask, tokenizer):
    """What the model has said in an episode, turn by turn."""
    groups = groupby(zip(ids, mask, strict=True), key=lambda token: token[1])
    said = [[token for token, _ in tokens] for by_model, tokens in groups if by_model]
    return [tokenizer.decode(tokens).removesuffix(tokenizer.eos_token) for tokens in said]


def test_steps_of_rounds_are_those_of_episodes_and_of_all_candidates():
    config = RunPipelineConfig(simpo=ActorStageConfig(PreferenceConfig(10, num_candidates=8)))
    critic = {"num_env_steps": 100, "rollout/invalid_rate": 0.5}  # counted in its steps already
    simpo = {"num_env_steps": 200, "rollout/invalid_rate": 0.05, "pairs/num_plays": 30}
    results = SimpleNamespace(critic_summaries=[critic, critic], actor_summaries=[simpo])
    steps = peer_methods.steps_of_rounds(SimpleNamespace(results=results), config)
    assert steps == 100 + 100 + 200 + 0.05 * 80


# --- groups --------------------------------------------------------------------------------------


def test_the_groups_of_a_state_begin_in_it_and_learn_the_answers_to_it_alone(mistral, course):
    torch.manual_seed(0)
    groups = peer_grpo.StateGroups(course, size=4, gamma=0.5)
    played = groups([[{"role": "user", "content": ""}]] * 4 * 48, standing_in(mistral))
    env, template = make_language_env(GRID), PromptTemplate(mistral[1])
    texts = [env.reset(options={"state": state})[0] for state in env.view_states()]
    prompts = [tuple(ids) for ids in played["prompt_ids"]]
    assert all(len({*prompts[first : first + 4]}) == 1 for first in range(0, 192, 4))
    assert sorted({*prompts}) == sorted(map(tuple, template.encode_batch(texts)))
    assert len({tuple(ids) for ids in played["completion_ids"]}) > 2
    for ids in played["completion_ids"]:
        assert mistral[1].eos_token_id not in ids[:-1]  # one answer, without what followed it
    # At most .5^(k - 1) of the goal less the cost of one call, for k actions until there.
    for earned, count in zip(played["episode_return"], played["num_actions"], strict=True):
        assert earned <= 0.5 ** (count - 1) - 0.125 or earned <= 0


def test_where_texts_remember_groups_begin_in_the_middle_of_episodes_with_what_was_said(config):
    remembering = replace(GRID, history=3)
    rollouts = Rollouts(remembering, 64)
    drawn = RandomChains(rollouts.env.grammar)
    before = rollouts.play(drawn, sampled_episodes(rollouts.env, 48, 0))
    met = {text for episode in before for text in episode.observations[:-1]}
    starts = peer_methods.starts_of_groups(rollouts, before, 100, seed=0)
    groups = peer_methods.play_groups(drawn, rollouts, starts, 3, seed=0)
    begun = [{member.observations[0] for member in group} for group in groups]
    assert all(len(texts) == 1 and texts <= met for texts in begun)
    assert all(len({str(m.infos[0]["state"]) for m in group}) == 1 for group in groups)
    assert sum("\n" in text for texts in begun for text in texts) > 30


def test_pairs_by_return_prefer_what_reaches_the_goal_sooner(mistral, config, folder, tmp_path):
    settings = MakePreferencesConfig(
        RunConfig(run_dir=str(tmp_path / "pairs")),
        environment=GRID,
        actor=SamplerConfig(model=str(folder), max_new_tokens=16, dtype="float32"),
        preferences=PreferenceConfig(num_states=48, num_candidates=8, min_margin=0.01),
    )
    with Run.of(settings) as run:
        made = peer_methods.pairs_by_return(settings, run, gamma=0.5)
    pairs = read_pairs(tmp_path / "pairs" / "pairs")
    assert len(pairs) == made["num_pairs"] > 12
    env, better = make_language_env(GRID), []
    for pair in pairs:
        rewards = []
        for said in (pair.chosen, pair.rejected):
            env.reset(options={"state": pair.state})
            rewards.append(env.step(said)[1])
        better.append(rewards[0] - rewards[1])
    assert sum(gain > 0 for gain in better) > 3 * sum(gain < 0 for gain in better)


# --- the importance mask -------------------------------------------------------------------------


def trainer_of(mistral, folder, rollout_func, **settings):
    config = peer_grpo.grpo_config(
        folder, 0, per_device_train_batch_size=32, max_completion_length=64, **settings
    )
    return GRPOTrainer(
        mistral[0], episode_return, config, Dataset.from_list(tasks(GRID)),
        processing_class=mistral[1], rollout_func=rollout_func,
    )  # fmt: skip


def gradient(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


def trls_gradient(trainer):
    """Of one batch of groups, and the batch."""
    torch.manual_seed(0)
    rows = [dict(row) for row in list(trainer.train_dataset)[::12] for _ in range(8)]
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    batch = trainer._generate_and_score_completions(rows)
    return gradient(trainer.model, trainer._compute_loss(trainer.model, batch)), batch


def hand_computed(model, batch, weight):
    """The mean over what the model said of A, times its weight, times the gradient of log π."""
    total, count = 0.0, 0
    for n, ids in enumerate(batch["completion_ids"]):
        given = batch["prompt_ids"][n][batch["prompt_mask"][n] == 1]
        ids = ids[batch["completion_mask"][n] == 1]
        said = batch["tool_mask"][n][: len(ids)]
        logits = model(torch.cat([given, ids])[None]).logits[0, len(given) - 1 : -1]
        log_p = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
        total = total - (batch["advantages"][n] * weight * log_p * said).sum()
        count += said.sum()
    return gradient(model, total / count)


def is_close(one, other):
    return torch.linalg.norm(one - other) < 1e-3 * torch.linalg.norm(other)


def test_gradients_of_episodes_of_several_turns_are_those_of_what_the_model_said(mistral, tmp_path):
    trainer = trainer_of(mistral, tmp_path, rollout(GRID, 16))
    own, batch = trls_gradient(trainer)
    assert batch["advantages"].abs().max() > 0.5 and (batch["tool_mask"] == 0).any()
    assert is_close(own, hand_computed(trainer.model, batch, 1.0))


def mismatched(prompts, trainer):
    """A rollout by an engine that finds each token 8 % less probable than the trainer does."""
    played = rollout(GRID, 16)(prompts, trainer)
    played["logprobs"] = [[told - 0.08 for told in row] for row in played["logprobs"]]
    return played


def test_another_engine_changes_the_weight_of_tokens_and_freezes_no_long_episode(mistral, tmp_path):
    def of_other_engine(**settings):
        trainer = trainer_of(mistral, tmp_path, mismatched, **settings)
        trainer.use_vllm = True  # its completions come from elsewhere
        trainer._last_loaded_step = 0
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        return (*trls_gradient(trainer), trainer.model)

    own, batch, model = of_other_engine()
    assert is_close(own, hand_computed(model, batch, math.exp(0.08)))
    said = (batch["tool_mask"] * batch["completion_mask"]).sum(1)
    assert said.max() > math.log(3) / 0.08  # so long that their product of ratios is above 3
    _, frozen, _ = of_other_engine(vllm_importance_sampling_mode="sequence_mask")
    kept = frozen["importance_sampling_ratio"][:, 0] > 0
    assert kept.tolist() == (said * 0.08 < math.log(3)).tolist()


# --- the runner ----------------------------------------------------------------------------------


def points_of(folder):
    """All but the seconds."""
    lines = map(json.loads, (folder / "points.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if k != "cpu_seconds"} for line in lines]


def run_in(folder, config, monkeypatch, method, pause_at=math.inf):
    monkeypatch.setitem(WORLDS, "grid", World((), budget=600, cpu_seconds=1e9))
    monkeypatch.setattr(peers, "warm_start", lambda *_: config)
    settings = {"num_generations": 4, "num_episodes": 16, "max_completion_length": 64}
    peers.run(folder, "grid", 0, method, pause_at, **settings)


def test_a_race_that_is_stopped_goes_on_to_the_same_points(config, tmp_path, monkeypatch):
    run_in(tmp_path / "whole", config, monkeypatch, "grpo_states")
    whole = points_of(tmp_path / "whole/grid/0/grpo_states")
    assert len(whole) > 3 and whole[-1]["num_env_steps"] <= 600
    parts = 0
    while not (tmp_path / "parts/grid/0/grpo_states/ended.json").exists():
        with suppress(peer_methods.Paused):
            run_in(tmp_path / "parts", config, monkeypatch, "grpo_states", pause_at=0)
        parts += 1
    assert parts > 3
    assert points_of(tmp_path / "parts/grid/0/grpo_states") == whole


def test_seconds_that_were_worth_something_are_kept_when_a_run_is_stopped(course):
    course.point(0, course.config.actor)
    before = course.points[-1]["cpu_seconds"]
    sum(range(3_000_000))
    course.keep_clock()
    sum(range(3_000_000))  # is lost
    again = peer_methods.Course(course.folder, course.world, course.config, math.inf)
    assert before + 0.01 < again.cpu_seconds() < course.cpu_seconds() - 0.01


def test_what_is_finished_is_not_run_again(config, tmp_path, monkeypatch):
    done = tmp_path / "grid/0/simpo"
    done.mkdir(parents=True)
    (done / "ended.json").write_text("{}")
    run_in(tmp_path, config, monkeypatch, "simpo")
    assert [path.name for path in done.iterdir()] == ["ended.json"]


# --- the report ----------------------------------------------------------------------------------


def points(*pairs):
    return [{"num_env_steps": s, "cpu_seconds": s / 10, "return": r} for s, r in pairs]


def test_a_difference_counts_where_the_interval_of_paired_seeds_excludes_equality():
    ours = {seed: points((0, 0.0), (10, 0.5 + seed)) for seed in range(3)}
    near = {seed: points((10, 0.5 + seed + gap)) for seed, gap in enumerate((0.2, -0.1, 0.3))}
    above = {seed: points((10, 0.5 + seed + gap)) for seed, gap in enumerate((0.2, 0.3, 0.4))}
    # mean .1333, s .2082, t(2) 4.303: .1333 ± .5172; mean .3, s .1: .3 ± .2484
    assert peer_report.difference(near, ours) == ("+0.133 ± 0.517", "")
    assert peer_report.difference(above, ours) == ("+0.300 ± 0.248", "better")
    assert peer_report.difference(ours, above) == ("-0.300 ± 0.248", "worse")
    assert peer_report.difference({0: ours[0]}, ours) == ("", "")


def test_a_level_is_reached_when_a_run_stays_above_it():
    climbing = points((0, 0.0), (10, 0.9), (20, 0.6), (30, 0.95))
    assert peer_report.reached(climbing, 0.8, "num_env_steps") == 30
    assert peer_report.reached(climbing, 0.5, "cpu_seconds") == 1.0
    assert peer_report.reached(climbing, 0.99, "num_env_steps") == math.inf
    held = peer_report.held(climbing, "num_env_steps", np.array([0, 9, 10, 25, 99]))
    assert held.tolist() == [0.0, 0.0, 0.9, 0.6, 0.95]


def test_a_table_has_floors_methods_and_the_best_there_is():
    runs = {
        method: {
            seed: [
                {"num_env_steps": steps, "cpu_seconds": steps / 10, "success": r, "return": r}
                for steps, r in ((0, 0.1), (100, end + seed / 100))
            ]
            for seed in range(2)
        }
        for method, end in (("simpo", 0.9), ("grpo", 0.4))
    }
    bounds = {"random": {"success": 0, "return": 0}, "optimum": {"success": 1, "return": 1}}
    rows = [line.split(" | ") for line in peer_report.section("frozen_lake_8x8", runs, bounds)]
    named = {row[0].strip("| "): row[1:] for row in rows if len(row) > 5}
    assert list(named)[1:] == [
        "random", "before training", "critic, SimPO", "GRPO, whole episodes", "optimum"
    ]  # fmt: skip
    # s .0071, t(1) 12.71: ± .0636; differences of -.5 twice
    assert named["GRPO, whole episodes"][:5] == [
        "2", "0.405 ± 0.064", "0.405 ± 0.064", "-0.500 ± 0.000", "worse"
    ]  # fmt: skip
    # .955 is 95 % of the way from .1 to 1
    assert named["critic, SimPO"][5:7] == ["0 of 2", "0 of 2"]


def test_points_beyond_the_budget_do_not_count(tmp_path):
    folder = tmp_path / "0/simpo"
    folder.mkdir(parents=True)
    folder.joinpath("points.jsonl").write_text(
        "".join(json.dumps(point) + "\n" for point in points((0, 0.1), (90, 0.2), (110, 0.3)))
    )
    assert peer_report.read(tmp_path, "simpo", [0], 100) == {}
    (folder / "ended.json").write_text("{}")
    (kept,) = peer_report.read(tmp_path, "simpo", [0, 1], 100).values()
    assert [point["num_env_steps"] for point in kept] == [0, 90]
