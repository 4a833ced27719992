"""Cloning recorded episodes: which ones, which tokens, and what cannot be cloned."""

from dataclasses import replace

import pytest
from script_setups import GRID, TRAINING, config_of, run_here
from test_trajectory_files import episode

from lactchain import Action, DataError, OptimalChains, RandomChains, Rollouts, write_trajectories
from lactchain.data.episodes import all_episodes
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate
from lactchain.stages.train_bc import TrainBCConfig, chosen_episodes
from lactchain.trainers.behavior_cloning import decision_rows


@pytest.fixture(scope="module")
def tokenizer(weights):
    return load_tokenizer(weights / "actor", padding_side="left", chat=True)


@pytest.fixture(scope="module")
def played():
    """Random episodes from every state, then optimal ones."""
    rollouts = Rollouts(GRID)
    episodes = all_episodes(rollouts.env, seed=0)
    policies = (RandomChains(rollouts.env.grammar), OptimalChains(rollouts.env))
    return [t for policy in policies for t in rollouts.play(policy, episodes)]


def cloning_of(weights, tmp_path, file, **changes):
    four = replace(TRAINING, max_steps=4)
    config = config_of("train_bc", weights, tmp_path / "run", training=four)
    return replace(config, trajectories=str(file), **changes)


def test_the_best_are_the_successes_and_the_highest_returns_in_their_order():
    def of(episode_return, success, seed):
        found = episode(((episode_return,),), seed=seed)
        return replace(found, infos=(found.infos[0], found.infos[1] | {"success": success}))

    episodes = [of(1, True, 0), of(5, False, 1), of(3, True, 2), of(3, True, 3), of(2, True, 4)]

    def seeds(*arguments):
        return [t.seed for t in chosen_episodes(episodes, *arguments)]

    assert seeds() == [0, 1, 2, 3, 4]
    assert seeds(True) == [0, 2, 3, 4]
    assert seeds(False, 0.3) == [1, 2]  # two of five; of the threes the earlier one
    assert seeds(True, 0.5) == [2, 3]
    assert seeds(False, 0.01) == [1]
    with pytest.raises(DataError, match="expected successful episodes, found none among 1"):
        chosen_episodes(episodes[1:2], True)


def test_exactly_the_agents_tokens_are_learnt(played, tokenizer):
    template = PromptTemplate(tokenizer, "none", Rollouts(GRID).env.grammar)
    decisions = [d for t in played for d in zip(t.observations, t.actions, strict=False)]
    last = [(t.observations[-2], t.actions[-1]) for t in played]
    assert len(decisions) > len(last)
    for said, only_final in ((decisions, False), (last, True)):
        rows = decision_rows(played, template, tokenizer, only_final=only_final)
        for row, (observation, action) in zip(rows, said, strict=True):
            learnt = [label for label in row["labels"] if label != -100]
            assert tokenizer.decode(learnt) == action.text + tokenizer.eos_token
            prompt = row["input_ids"][: -len(learnt)]
            assert tokenizer.decode(prompt) == template.render(observation)
            assert row["input_ids"] == prompt + learnt


def test_the_script_clones_all_completions_or_the_best(played, weights, tmp_path):
    write_trajectories(tmp_path / "data.parquet", played)

    def num_examples(name, **changes):
        config = cloning_of(weights, tmp_path / name, tmp_path / "data.parquet", **changes)
        figures = run_here("train_bc", config)
        assert figures["num_dropped"] == 0
        return figures["num_examples"]

    best = {"only_successes": True, "best_fraction": 0.5}
    kept = chosen_episodes(played, True, 0.5)
    assert num_examples("all") == sum(map(len, played))
    assert num_examples("best", **best) == sum(map(len, kept)) < 48 * 4
    assert num_examples("final", **best, only_final_completions=True) == len(kept)


def test_tokens_of_another_tokenizer_are_refused(played, weights, tmp_path):
    [first, *rest] = played
    sampled = (Action(first.actions[0].text, (7, 8, 9)), *first.actions[1:])
    write_trajectories(tmp_path / "data.parquet", [*rest, replace(first, actions=sampled)])
    with pytest.raises(DataError, match=rf"episode {len(rest)}, decision 0: its tokens read"):
        run_here("train_bc", cloning_of(weights, tmp_path, tmp_path / "data.parquet"))


def test_a_decision_longer_than_the_models_context_is_named(played, tokenizer):
    template = PromptTemplate(tokenizer, "none", Rollouts(GRID).env.grammar)
    with pytest.raises(DataError, match=r"episode \d+, decision \d+: .* the model reads 8"):
        decision_rows(played, template, tokenizer, 8)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="trajectories: expected null beside `pairs`"):
        TrainBCConfig(trajectories="played", pairs="pairs")
    with pytest.raises(ValueError, match="best_fraction"):
        TrainBCConfig(best_fraction=0.0)
