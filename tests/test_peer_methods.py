"""What benchmarks/peers.py rests on: one count of steps, exact groups, gradients, resuming."""

import json
import math
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace

import gymnasium as gym
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

from lactchain.config.settings import ActorConfig, PreferenceConfig
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.views import shipped_view
from lactchain.models.actor import LanguageActor
from lactchain.models.prompting import PromptTemplate
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
