"""States that are held back: always the same, never practised in any form, told apart."""

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from script_setups import BEHAVIOR, GRID, PREFERENCES, run_smallest

from lactchain import EmbeddingCritic, FunctionPolicy, Region, make_language_env, open_run, parse
from lactchain.config.settings import ActorConfig, CriticConfig, EnvironmentConfig, HeldBackConfig
from lactchain.data.base_models import corpus
from lactchain.data.candidates import some_after_completion
from lactchain.data.episodes import RecordedText, all_episodes, sampled_episodes, sampled_states
from lactchain.data.evaluations import StateValues
from lactchain.data.exact_values import expected_figures
from lactchain.data.preferences import read_pairs, write_pairs
from lactchain.data.rollouts import Rollouts, collect, evaluate
from lactchain.data.samples import invalid_rate, sample_completions
from lactchain.data.sources import open_trajectories, read_trajectories, write_trajectories
from lactchain.environments.chance import best_chains
from lactchain.environments.scripted import OptimalChains, RandomChains
from lactchain.environments.views import HeldBack, tabular_model
from lactchain.errors import ConfigError, DataError
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.run import Run, read_metrics
from lactchain.stages.make_preferences import make_preferences
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.train_bc import behavior_examples
from lactchain.stages.train_critic import critic_figures
from lactchain.trainers.critic import EpisodeTable
from lactchain_extras.stages.make_offline_data import region_episodes
from lactchain_extras.stages.token_values import train_values
from lactchain_extras.stages.train_mc import TrainMCConfig

GOALS, PAIRS = ["goal_x", "goal_y"], ["x", "y", "goal_x", "goal_y"]
HALF = replace(GRID, held_back=HeldBackConfig(0.5))  # 24 of 48 states, so that many lie on the way
ONE_GOAL = replace(GRID, held_back=HeldBackConfig(0.25, GOALS))  # of four
BY_TEXT = replace(GRID, template="relative", held_back=HeldBackConfig(0.5, ["text"]))


def held(config):
    """The states that are held back, and every text of theirs."""
    env = make_language_env(config)
    states = [state for state in env.view_states() if state in env.held_back]
    return states, {text for state in states for text in env.texts(state)}


def asked(trajectories):
    """The texts that a policy answered in some episodes."""
    return {text for t in trajectories for text in t.observations[:-1]}


def test_the_choice_is_the_same_whatever_the_order_of_the_states():
    states = make_language_env(GRID).view_states()
    shuffled = random.Random(0).sample(states, len(states))
    fields_too = [dict(reversed(state.items())) for state in shuffled]
    chosen = HeldBack.choose(states, 0.25, GOALS)
    assert chosen.values == HeldBack.choose(shuffled, 0.25, GOALS).values
    assert chosen.values == HeldBack.choose(fields_too, 0.25, GOALS[::-1]).values
    # Runs of other days and machines have to agree, so the goal itself is written down here.
    assert chosen.values == {'{"goal_x": 1, "goal_y": 1}'}


def test_the_share_is_met_as_nearly_as_whole_states_allow():
    for share in (0.03, 0.5, 0.99):
        states, _ = held(EnvironmentConfig(held_back=HeldBackConfig(share)))
        assert len(states) == round(share * 960)


def test_states_that_are_equal_in_the_fields_go_together():
    for by, num_values, num_states in ((GOALS, 3, 3 * 60), (PAIRS, 48, 48 * 4)):
        config = EnvironmentConfig(held_back=HeldBackConfig(0.2, by))
        states, texts = held(config)
        assert len({tuple(state[name] for name in by) for state in states}) == num_values
        assert len(states) == num_states
        played = collect(RandomChains(make_language_env(config).grammar), config, 200)
        assert not asked(played) & texts


def test_an_episode_is_cut_where_it_would_ask_in_a_state_that_is_held_back():
    states, texts = held(HALF)
    env = make_language_env(HALF)
    episodes = sampled_episodes(env, 480, seed=0)
    in_regions = region_episodes(env, [{"x": [0, 0]}, {"x": [1, 1]}], 200, seed=0)
    assert not [episode for episode in [*episodes, *in_regions] if episode.state in states]
    policy = RandomChains(env.grammar)
    assert not asked(Rollouts(HALF).play(policy, in_regions)) & texts
    played = Rollouts(HALF).play(policy, episodes)
    assert not asked(played) & texts
    cut = [t for t in played if t.infos[-1]["state"] in states]
    assert cut and all((t.terminated, t.truncated) == (False, True) for t in cut)
    everywhere = [replace(episode, region=Region()) for episode in episodes]
    assert asked(Rollouts(HALF).play(policy, everywhere)) & texts


@pytest.mark.parametrize("config", [HALF, BY_TEXT], ids=["by state", "by text"])
def test_no_text_of_theirs_is_cloned_or_in_pairs_or_in_the_tokenizers_corpus(config):
    states, texts = held(config)
    rollouts = Rollouts(config)
    policy = RandomChains(rollouts.env.grammar)
    examples = behavior_examples(rollouts.env, BEHAVIOR, seed=0)
    assert not {text for text, _ in examples} & texts
    settings = replace(PREFERENCES, share_after_completion=1.0)
    pairs, _ = make_preferences(policy, None, rollouts, settings)
    assert pairs and not {pair.prompt for pair in pairs} & texts
    assert not [pair for pair in pairs if pair.state in states]
    assert texts & set(corpus(replace(config, held_back=None)))
    assert not texts & set(corpus(config))


def test_where_a_completion_leads_to_one_the_state_itself_is_asked():
    _, texts = held(HALF)
    rollouts = Rollouts(HALF)
    states = sampled_states(rollouts.env, 24, seed=0)
    before, policy = rollouts.observe(states), RandomChains(rollouts.env.grammar)
    seeds = [derive_seed(0, "first", i) for i in range(24)]
    asked_in = some_after_completion(policy, rollouts, states, 1.0, seed=0)
    outcomes = rollouts.outcomes(states, policy.act(before, seeds), 0)
    led_there = [i for i, t in enumerate(outcomes) if t.observations[-1] in texts]
    assert 0 < len(led_there) < 24 and all(asked_in[i] == states[i] for i in led_there)
    prompts = {q.text for q in asked_in if isinstance(q, RecordedText)}
    assert prompts and not (prompts | set(before)) & texts


def test_the_critic_is_asked_what_a_cut_episode_is_worth_and_learns_no_such_row(weights):
    _, texts = held(HALF)
    critic = EmbeddingCritic.from_config(CriticConfig(str(weights / "encoder")))
    played = collect(RandomChains(make_language_env(HALF).grammar), HALF, 200)
    table = EpisodeTable(played, critic)
    ids = {tuple(row) for row in critic.tokenize(sorted(texts))}
    assert ids & set(map(tuple, table.inputs))
    assert not ids & {tuple(table.inputs[i]) for i in table.row_inputs}


def test_recorded_episodes_leave_them_out(weights, tmp_path):
    run_smallest("make_offline_data", weights, tmp_path / "run", environment=HALF)
    assert not asked(read_trajectories(tmp_path / "run/trajectories")) & held(HALF)[1]


OF_THEM = r"record\.parquet: expected no decision in a state that"


def record_of_all_states(folder):
    policy = RandomChains(make_language_env(GRID).grammar)
    write_trajectories(folder / "record.parquet", collect(policy, GRID, 48))
    return str(folder / "record.parquet")


@pytest.mark.parametrize("script", ["train_bc", "train_critic", "make_preferences", "train_simpo"])
def test_a_record_of_them_is_refused(script, weights, tmp_path):
    if script == "train_simpo":
        policy, record = RandomChains(make_language_env(GRID).grammar), tmp_path / "record.parquet"
        write_pairs(record, make_preferences(policy, None, GRID, PREFERENCES)[0])
        source = {"pairs": str(record)}
    else:
        source = {"trajectories": record_of_all_states(tmp_path)}
    with pytest.raises(DataError, match=OF_THEM):
        run_smallest(script, weights, tmp_path / "run", environment=HALF, **source)


def test_a_record_that_does_not_tell_its_states_is_refused(weights, tmp_path):
    record = tmp_path / "record.jsonl"
    row = {"prompt": "0 0 up 1 1", "chosen": '["move forward"]', "rejected": '["turn left"]'}
    record.write_text(json.dumps(row))
    changes = {"environment": HALF, "pairs": str(record)}
    with pytest.raises(DataError, match="expected records that tell the state"):
        run_smallest("train_bc", weights, tmp_path / "run", changes)


def test_values_of_tokens_are_not_learnt_from_such_a_record_either(weights, tmp_path):
    actor, record = ActorConfig(str(weights / "actor")), record_of_all_states(tmp_path)
    config = TrainMCConfig(environment=HALF, actor=actor, trajectories=record)
    with pytest.raises(DataError, match=OF_THEM):
        train_values(config, Run(tmp_path, {"run_id": "x"}, None))
    assert open_trajectories(record, make_language_env(GRID))


NO_CHAIN = FunctionPolicy(lambda text: "?")


def knows_what_it_practised(config):
    """The shortest way from practised states, and no chain from the others."""
    optimal, unknown = OptimalChains(make_language_env(config)), held(config)[1]
    return FunctionPolicy(lambda text: "?" if text in unknown else optimal.act([text], [0])[0].text)


def test_figures_of_both_parts_stand_beside_those_of_all_start_states():
    results, figures = evaluate(knows_what_it_practised(ONE_GOAL), ONE_GOAL)
    assert len(results) == 48 and sum(result.held_back for result in results) == 12
    assert figures["success_rate"] == 36 / 48
    assert figures["practised/num_episodes"] == 36 and figures["held_back/num_episodes"] == 12
    assert figures["practised/success_rate"] == 1 and figures["held_back/success_rate"] == 0
    assert figures["practised/actions_over_shortest"] == 1
    assert math.isnan(figures["held_back/actions_over_shortest"])
    assert figures["practised/invalid_rate"] == 0 and figures["held_back/invalid_rate"] == 1
    assert figures["practised/episode_return"] == 1 and figures["held_back/episode_return"] == 0
    _, before = evaluate(OptimalChains(make_language_env(GRID)), GRID)
    assert not [name for name in before if name.startswith(("practised/", "held_back/"))]


def test_completions_are_sampled_in_practised_states():
    samples = sample_completions(knows_what_it_practised(HALF), Rollouts(HALF), 48, seed=0)
    assert len(samples) == 48 and invalid_rate(samples) == 0


def test_the_share_of_the_optimum_is_of_practised_start_states():
    lake = EnvironmentConfig("FrozenLake-v1", max_chain_length=1, held_back=HeldBackConfig(0.5))
    best = OptimalChains(make_language_env(lake))
    alone = expected_figures(best, make_language_env(lake))
    env = make_language_env(replace(lake, held_back=None))
    values, _ = best_chains(tabular_model(env.env, env.view), 1, 0.99)
    held_back = make_language_env(lake).held_back
    rows = [row for row, state in enumerate(env.start_states()) if state not in held_back]
    assert 0 < len(rows) < len(values)
    assert alone["optimum_value"] == pytest.approx(values[rows].mean())


def test_an_evaluation_asks_in_states_that_are_held_back_to_the_end():
    """Else an episode from such a state, or through one, would be cut at once."""
    episodes = all_episodes(make_language_env(HALF), 0)
    lengths = [len(t) for t in Rollouts(HALF).play(NO_CHAIN, episodes)]
    assert lengths == [GRID.max_chains] * 48


def test_texts_that_are_practised_all_the_same_are_warned_of(caplog):
    evaluate(NO_CHAIN, replace(HALF, template="{goal_x} {goal_y}{feedback}"))
    assert "24 of 24 start states that are held back read like practised ones" in caplog.text
    caplog.clear()
    evaluate(NO_CHAIN, HALF)
    assert not caplog.text


def test_by_text_nothing_that_is_held_back_reads_like_what_is_practised(caplog):
    states, texts = held(BY_TEXT)
    env = make_language_env(BY_TEXT)
    plain = {env.texts(state)[0] for state in env.view_states()}
    assert len(plain & texts) == round(0.5 * len(plain)) < len(states)
    evaluate(NO_CHAIN, BY_TEXT)
    assert not caplog.text


def test_the_critic_is_measured_on_both_parts():
    env = make_language_env(ONE_GOAL)
    states = env.view_states()
    wrong = [2.0 * (state in env.held_back) for state in states]  # off by 2 in these alone
    exact = np.arange(48) / 10
    values = StateValues(tuple(states), tuple(exact + wrong), tuple(exact), 0.9)
    figures = critic_figures(values, env)
    assert figures["critic_rmse"] == pytest.approx(1)
    assert figures["practised/critic_rmse"] == 0 and figures["practised/critic_r2"] == 1
    variance = np.var([v for v, off in zip(exact, wrong, strict=True) if off])
    assert figures["held_back/critic_rmse"] == pytest.approx(2)
    assert figures["held_back/critic_r2"] == pytest.approx(1 - 4 / variance)
    assert math.isnan(StateValues(({}, {}), (0.0, 1.0), (2.0, 2.0), 0.9).r2)


def test_two_rounds_never_practise_them_and_tell_them_apart(weights, tmp_path):
    changes = {"environment": HALF, "target": {"held_back/actions_over_shortest": 0.5}}
    changes["simpo.preferences.num_states"] = 48
    summary = run_smallest("run_pipeline", weights, tmp_path / "run", changes)
    _, texts = held(HALF)
    for number in (1, 2):
        folder = tmp_path / f"run/round_{number}"
        assert not asked(read_trajectories(folder / "critic/trajectories")) & texts
        assert not {pair.prompt for pair in read_pairs(folder / "simpo/pairs")} & texts
        assert asked(read_trajectories(folder / "evaluation/trajectories")) & texts
    parts = [summary[f"{part}/success_rate"] for part in ("practised", "held_back")]
    assert sum(parts) / 2 == pytest.approx(summary["success_rate_after"])
    assert [row["held_back/success_rate"] for row in summary["rounds"]][-1] == parts[1]
    assert "eval/held_back/success_rate" in read_metrics(tmp_path / "run")[-1]
    critic = json.loads((tmp_path / "run/round_1/critic/summary.json").read_text())
    assert critic["held_back/critic_rmse"] > 0
    page = (tmp_path / "run/report.html").read_text()
    assert "round 2, held back" in page and not summary["target_met"]
    assert open_run(tmp_path / "run").picture is not None


@pytest.mark.parametrize(("changes", "message"), [
    ({"held_back": HeldBackConfig(0.01)}, r"0\.01 of 48 is 0; change the share"),
    ({"held_back": HeldBackConfig(0.95, GOALS)}, r"0\.95 of 4 is 4; change"),
    ({"held_back": HeldBackConfig(by=["goal"])}, r"by: expected fields of a state, .*'goal'"),
    ({"id": "lactchain/Wordle-v0", "kwargs": {}}, r"0\.5 of 1 is 0; change the share"),
], ids=["none", "all", "field", "one start"])  # fmt: skip
def test_what_leaves_no_two_parts_is_refused(changes, message):
    env = make_language_env(replace(HALF, template=None, **changes))
    with pytest.raises(ConfigError, match=message):
        sampled_episodes(env, 1, seed=0)


def test_a_view_that_does_not_list_its_states_is_refused():
    rollouts = Rollouts(HALF)
    rollouts.env.view = replace(rollouts.env.view, states=None)
    with pytest.raises(ConfigError, match="held_back: expected a view with `states` and"):
        rollouts.play(NO_CHAIN, sampled_episodes(rollouts.env, 1, seed=0))


def test_the_share_leaves_some_and_the_command_line_sets_it():
    for share in (0.0, 1.0):
        with pytest.raises(ValueError, match=r"share: expected a number in \(0, 1\)"):
            HeldBackConfig(share)
    argv = ["--environment.held_back.share", "0.25", "--environment.held_back.by", "[goal_x]"]
    assert parse(RunPipelineConfig, argv).environment.held_back == HeldBackConfig(0.25, ["goal_x"])
    assert parse(RunPipelineConfig, []).environment.held_back is None
