"""What each round leaves for people to look at: true of its own actor, critic and pairs."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from script_setups import GRID, config_of, run_here
from transformers import AutoTokenizer

import lactchain
from lactchain import DataError, EmbeddingCritic, Run, make_language_env, read_pairs, write_pairs
from lactchain.config.settings import CriticConfig, EnvironmentConfig, GuidedActorConfig, recast
from lactchain.data.chain_values import expected_worth
from lactchain.data.samples import SAMPLES
from lactchain.environments.exact import optimal_values
from lactchain.environments.scripted import RememberingPolicy
from lactchain.environments.views import tabular_model
from lactchain.stages.evaluate import EvaluateConfig, evaluate_actor
from lactchain.types import Action, Discount, PreferencePair
from lactchain_extras.explorer import recording
from lactchain_extras.explorer.inspections import CANDIDATES, read_inspection

GAMMA = 0.9
ROUNDS = 1, 2


@pytest.fixture(scope="module")
def pipeline(weights, finished):
    folder = str(finished("run_pipeline"))
    return config_of("run_pipeline", weights, folder), folder


def inspected(pipeline, number):
    return read_inspection(f"{pipeline[1]}/round_{number}/inspection")


def worth(critic, env, state, completion):
    """V(s) and r + γ^k V(next state), by playing the completion and asking the critic."""
    before, _ = env.reset(options={"state": state})
    after, reward, terminated, _, info = env.step(completion)
    earned = sum(GAMMA**j * r for j, r in enumerate(info["rewards"]))
    earned += reward - sum(info["rewards"])
    value, next_value = critic.values([before]), critic.values([after])
    discount = 0.0 if terminated else GAMMA ** max(1, len(info["executed"]))
    return value.item(), earned + discount * next_value.item()


@pytest.mark.parametrize("number", ROUNDS)
def test_every_value_is_that_of_the_rounds_own_critic(pipeline, number):
    found, env = inspected(pipeline, number), make_language_env(GRID)
    critic = EmbeddingCritic.load(f"{pipeline[1]}/round_{number}/critic/critic")
    assert found.meta["critic"] == f"round_{number}/critic/critic"
    states = {}
    for row in found.answers.to_pylist():
        states[row["state_id"]] = state = json.loads(row["state"])
        value, q = worth(critic, env, state, row["completion"])
        assert row["value"] == pytest.approx(value, abs=1e-4)
        assert row["q"] == pytest.approx(q, abs=1e-4)
        assert row["advantage"] == pytest.approx(q - value, abs=1e-4)
    for row in found.candidates.to_pylist():
        _, q = worth(critic, env, states[row["state_id"]], row["completion"])
        assert row["score"] == pytest.approx(q, abs=1e-4)
    assert len({round(v, 6) for v in found.answers["value"].to_pylist()}) > 5


def test_before_the_first_round_there_is_no_critic_and_no_pair(pipeline):
    found = inspected(pipeline, 0)
    assert found.meta["critic"] is None
    for name in ("value", "q", "advantage", "policy_value"):
        assert found.answers[name].null_count == found.answers.num_rows == 48
    assert found.candidates["score"].null_count == found.candidates.num_rows > 48
    paired = found.candidates["chosen"].to_pylist() + found.candidates["rejected"].to_pylist()
    assert not any(paired) and found.answers["optimal"].null_count == 0


def test_answers_are_what_the_rounds_actor_says_and_what_comes_of_it(pipeline):
    env, rows = make_language_env(GRID), inspected(pipeline, 2).answers.to_pylist()
    folder = f"{pipeline[1]}/round_2/simpo"
    greedy = RememberingPolicy(lactchain.load_policy(folder, decoding="free", temperature=0.0))
    starts = env.start_states()
    assert [row["state_id"] for row in rows] == list(range(48))
    assert [row["state"] for row in rows] == [recording.state_text(state) for state in starts]
    for row, state in zip(rows, starts, strict=True):
        text, _ = env.reset(options={"state": state})
        (said,) = greedy.act([text], [0])
        assert (row["text"], row["completion"]) == (text, said.text)
        assert "".join(row["tokens"]).removesuffix("</s>") == said.text
        assert row["probabilities"] == pytest.approx(np.exp(said.logprobs), rel=1e-4)
        text, _, over, _, info = env.step(said.text)
        assert (row["actions"], row["rewards"]) == (info["executed"], info["rewards"])
        assert row["invalid"] == info["invalid_action"] and row["terminated"] == over
        assert row["next_state"] == (None if over else recording.state_text(info["state"]))
        count, earned, cut = len(info["executed"]), sum(info["rewards"]), False
        while not (over or cut):
            text, reward, over, cut, info = env.step(greedy.act([text], [0])[0].text)
            count, earned = count + len(info["executed"]), earned + reward
        assert (row["success"], row["num_actions"]) == (info["success"], count)
        assert row["return"] == pytest.approx(earned)


def test_candidates_are_as_probable_as_the_actor_finds_them(pipeline):
    config, folder = pipeline
    found = inspected(pipeline, 2)
    actor = lactchain.load_policy(f"{folder}/round_2/simpo", decoding="free", temperature=1.0)
    samples = SAMPLES.read(f"{folder}/round_2/evaluation/samples")
    said, texts = {sample.action.text: sample.action for sample in samples}, texts_of(found)
    for row in [row for row in found.candidates.to_pylist() if row["count"]][:40]:
        exact = actor.log_probs([texts[row["state_id"]]], [said[row["completion"]]]).item()
        assert row["probability"] == pytest.approx(np.exp(exact), rel=1e-3)
        assert row["probability"] == pytest.approx(np.prod(row["probabilities"]), rel=1e-6)
    assert sum(found.candidates["count"].to_pylist()) == config.evaluation.num_samples


def texts_of(found):
    return dict(zip(*(found.answers[n].to_pylist() for n in ("state_id", "text")), strict=True))


@pytest.mark.parametrize("number", ROUNDS)
def test_candidates_are_marked_as_in_the_rounds_pairs(pipeline, number):
    found = inspected(pipeline, number)
    pairs, texts = read_pairs(f"{pipeline[1]}/round_{number}/simpo/pairs"), texts_of(found)
    for kind in ("chosen", "rejected"):
        rows = [row for row in found.candidates.to_pylist() if row[kind]]
        marked = {(texts[row["state_id"]], row["completion"]) for row in rows}
        assert marked == {(pair.prompt, getattr(pair, kind)) for pair in pairs}


def test_exact_values_stand_where_they_are_known(pipeline):
    first, second = (inspected(pipeline, number).answers for number in ROUNDS)
    model = tabular_model(make_language_env(GRID).env)
    np.testing.assert_allclose(first["optimal"].to_numpy(), optimal_values(model, GAMMA))
    assert first["policy_value"].null_count == 0  # the first critic is measured, others are not
    assert second["policy_value"].null_count == second.num_rows
    assert (first["policy_value"].to_numpy() <= first["optimal"].to_numpy() + 1e-9).all()
    one_step = [row for row in first.to_pylist() if row["shortest"] == 1]
    assert one_step and all(row["optimal"] == 1 for row in one_step)


def test_unfinished_stages_show_the_rows_that_are_there_and_others_all(pipeline, tmp_path):
    run_dir = shutil.copytree(pipeline[1], tmp_path / "run")
    stage = run_dir / "round_1/simpo"
    whole, files = lactchain.open_run(run_dir).pairs, sorted((stage / "pairs").glob("*.parquet"))
    held = len(read_pairs(files[0]))
    for file in files if len(files) == 1 else files[:1]:
        file.unlink()
    for view in (lactchain.open_run(run_dir), lactchain.open_run(stage)):
        with pytest.raises(DataError, match="parquet"):
            _ = view.pairs
    (stage / "summary.json").unlink()
    assert len(lactchain.open_run(run_dir).pairs) == len(whole) - held


def test_a_run_is_opened_with_its_models_its_pairs_and_its_answers(pipeline):
    run = lactchain.open_run(pipeline[1])
    text = inspected(pipeline, 2).answers["text"][0].as_py()
    for number in ROUNDS:
        (row,) = run.inspections[number].answers.slice(0, 1).to_pylist()
        (said,) = run.actor(number, decoding="free", temperature=0.0).act([text], [0])
        assert said.text == row["completion"]
        assert run.critic(number).values([text])[0] == pytest.approx(row["value"], abs=1e-4)
    chosen = run.summary["round"] or "no round"
    assert run.critic().values([text]) == run.critic(chosen).values([text])
    assert run.actor().act([text], [7]) == run.actor(chosen).act([text], [7])
    folders = (f"{pipeline[1]}/round_{number}/simpo/pairs" for number in ROUNDS)
    assert run.pairs == [pair for folder in folders for pair in read_pairs(folder)]
    assert sorted(run.inspections) == [0, 1, 2]
    assert run.actor(0).act([text], [0])[0].text
    with pytest.raises(DataError, match="got 3"):
        run.critic(3)


def test_a_run_that_was_killed_ends_with_the_same_inspections(pipeline, weights, tmp_path):
    run = shutil.copytree(pipeline[1], tmp_path / "run", symlinks=True)

    def inspections():
        return {path: path.read_bytes() for path in run.glob("round_*/inspection/*")}

    before = inspections()
    (run / "summary.json").unlink()
    shutil.rmtree(run / "round_1/inspection")
    (run / "round_2/inspection/manifest.json").unlink()
    (run / "round_2/inspection/answers.parquet").write_bytes(b"half")
    run_here("run_pipeline", config_of("run_pipeline", weights, run))
    assert inspections() == before


def test_many_start_states_are_sampled_the_same_in_all_rounds(pipeline, tmp_path, monkeypatch):
    config, folder = pipeline
    monkeypatch.setattr(recording, "MAX_STATES", 5)
    turns = {}
    monkeypatch.setattr(recording, "log_turns", lambda _, n, rows: turns.update({n: rows}))
    run = shutil.copytree(folder, tmp_path / "run", symlinks=True)
    recorder = recording.Recorder(config, Run(run, {"run_id": "x"}, None))
    whole = inspected(pipeline, 1)
    actor = replace(config.actor, model=f"{run}/base/actor")
    for number in ROUNDS:
        shutil.rmtree(run / f"round_{number}/inspection")
        recorder.record(number, actor, f"{run}/round_{number}/critic/critic")
    first, second = (read_inspection(run / f"round_{number}/inspection") for number in ROUNDS)
    assert [turns[number] for number in ROUNDS] == [t.answers.to_pylist() for t in (first, second)]
    assert first.meta == whole.meta | {"asked": 5, "sampled": True}
    assert first.answers["state_id"] == second.answers["state_id"]
    rows = whole.answers.to_pylist()
    assert first.answers.to_pylist() == [rows[n] for n in first.answers["state_id"].to_pylist()]
    places = set(first.answers["state_id"].to_pylist())
    assert set(first.candidates["state_id"].to_pylist()) == places


def record(weights, folder, world):
    """The inspection of an untrained actor and a critic that says 0, in a world; and its stage."""
    config = replace(config_of("run_pipeline", weights, folder / "run"), environment=world)
    greedy = recast(config.actor, GuidedActorConfig, decoding="free", temperature=0.0)
    evaluation = replace(config.evaluation, num_samples=50)
    settings = EvaluateConfig(environment=world, actor=greedy, evaluation=evaluation)
    with Run.open(folder / "run/round_0/evaluation", settings) as run:
        evaluate_actor(settings, run)
    critic = EmbeddingCritic.from_config(CriticConfig(str(weights / "encoder"), gamma=GAMMA))
    critic.save(folder / "critic")
    recorder = recording.Recorder(config, Run(folder / "run", {"run_id": "x"}, None))
    recorder.record(0, config.actor, str(folder / "critic"))
    return read_inspection(folder / "run/round_0/inspection")


PARTIAL = {"extractor": "utterance", "max_chains": 3, "history": 4, "template": "{walls}\n"}


@pytest.mark.parametrize(("world", "known"), [
    (EnvironmentConfig("lactchain/Wordle-v0", extractor="utterance"), []),
    (EnvironmentConfig("lactchain/Maze-v0", **PARTIAL), ["optimal", "shortest"]),
], ids=["wordle", "partial maze"])  # fmt: skip
def test_what_is_not_known_of_a_world_is_null(weights, tmp_path, world, known):
    answers = record(weights, tmp_path, world).answers
    nulls = {name for name in answers.column_names if answers[name].null_count}
    assert nulls == {"optimal", "shortest", "policy_value"} - set(known)
    assert set(answers["value"].to_pylist()) == {0.0}
    env = make_language_env(world)
    for row in answers.to_pylist():
        assert row["text"] == env.reset(options={"state": json.loads(row["state"])})[0]
        assert row["q"] == env.step(row["completion"])[1]


def test_where_dice_are_thrown_a_completion_is_worth_what_can_be_expected(weights, tmp_path):
    """A critic that has learnt nothing says 0: what is left is the expected reward of the chain."""
    lake = EnvironmentConfig("FrozenLake-v1", max_chains=4)
    stage, env = tmp_path / "run/round_0", make_language_env(lake)
    last, _ = env.reset(options={"state": {"state": 14}})  # the goal is to the right
    answers = ('["right"]', '["left", "right"]'), ('["down", "right"]', "right")
    pairs = [PreferencePair(last, *both) for both in answers]
    write_pairs(stage / "simpo/pairs/0.parquet", pairs)
    found = record(weights, tmp_path, lake)
    assert found.meta["critic"] == str(tmp_path / "critic")
    assert found.answers["shortest"].null_count == found.answers.num_rows == 11
    paired = {r["completion"]: r for r in found.candidates.to_pylist() if r["count"] == 0}
    assert paired.pop("right")["score"] == 0  # no chain
    assert paired['["right"]']["score"] == pytest.approx(1 / 3)
    chains = [env.extractor.parse(text).actions for text in paired]
    worth = expected_worth(env, [{"state": 14}] * 3, chains, None, Discount(GAMMA))
    assert [row["score"] for row in paired.values()] == pytest.approx(worth[:, 0])


def test_values_of_the_best_chains_pay_for_each_completion():
    """From (0, 1) looking up the goal (0, 0) is one step away; looking down, three."""
    near = {"x": 0, "y": 1, "orientation": 0, "goal_x": 0, "goal_y": 0}
    states = [near, near | {"orientation": 2}]
    env = make_language_env(replace(GRID, chain_cost=0.25, max_chain_length=2))
    for discount_per, later in (("action", 0.81), ("chain", 0.9)):
        worth = 0.75, -0.25 + later * (1 - 0.25)  # two turns, and then the step
        assert [*recording.best_values(env, states, 0.9, discount_per)] == pytest.approx(worth)
    assert recording.best_values(env, states, 1.0, "action") is None


def test_the_likeliest_completions_are_kept_and_all_of_pairs():
    said = [Action(f"{n}", (n,), (-n / 10,)) for n in range(20) for _ in range(n + 1)]
    pairs = [PreferencePair("", "18", "never said", (18,), (7, 8))]
    found = recording.merge(said, pairs)
    assert [said.text for said, _ in found] == [*map(str, range(8)), "18", "never said"]
    assert [told["count"] for _, told in found] == [*range(1, 9), 19, 0]
    assert [said.text for said, told in found if told["chosen"]] == ["18"]
    assert [said for said, told in found if told["rejected"]] == [Action("never said", (7, 8))]


def test_the_texts_of_tokens_join_to_that_of_all(weights):
    tokenizer = AutoTokenizer.from_pretrained(weights / "actor")
    told = recording.TokenTexts(tokenizer)
    for text in ('["turn left", "move forward"]', "a ☃ b", "", " x  "):
        ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        pieces = told.split(ids)
        assert len(pieces) == len(ids) and "".join(pieces) == tokenizer.decode(ids)
    snow = told.split(tuple(tokenizer("☃", add_special_tokens=False)["input_ids"]))
    assert snow[-1].strip() == "☃" and not "".join(snow[:-1]).strip()


def test_hostile_texts_are_kept_and_half_characters_shown_as_numbers(tmp_path):
    text = "</script>\x00\u202e\ud800"
    row = dict.fromkeys(CANDIDATES.names) | {"completion": text, "tokens": [text]}
    recording.write_tables(tmp_path / "inspection", {}, answers=[], candidates=[row])
    (found,) = read_inspection(tmp_path / "inspection").candidates.to_pylist()
    assert found["completion"] == found["tokens"][0] == "</script>\x00\u202e\\ud800"
