"""TRL's own trainer plays our worlds: by a rollout without tools, and by tool calls."""

import copy

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from training_setups import nudge
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl_setups import GRID, cloned_mistral, cloned_qwen, standing_in

from lactchain import ConfigError, EnvironmentConfig, OptimalChains, make_language_env
from lactchain.models.prompting import PromptTemplate
from lactchain_extras.trl import OVER, environment, episode_return, rollout, tasks

# TRL asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
WORDLE = EnvironmentConfig("lactchain/Wordle-v0", extractor="utterance")


@pytest.fixture(scope="module")
def mistral(tmp_path_factory):
    return cloned_mistral(tmp_path_factory.mktemp("tiny") / "actor")


def settings(folder, **changes):
    common = {
        "per_device_train_batch_size": 16, "num_generations": 8, "max_completion_length": 64,
        "learning_rate": 1e-3, "report_to": [], "use_cpu": True, "bf16": False, "logging_steps": 1,
        "save_strategy": "no", "disable_tqdm": True, "activation_checkpointing": False,
    }  # fmt: skip
    return GRPOConfig(str(folder), **common | changes)


def trainer_of(model, tokenizer, args, rewards=episode_return, **plays):
    """TRL's trainer on the tasks of the grid, which it plays by a rollout or in environments."""
    rows = Dataset.from_list(tasks(GRID))
    return GRPOTrainer(model, rewards, args, rows, processing_class=tokenizer, **plays)


def trained(trainer):
    """The rewards of the updates, in their order."""
    trainer.train()
    return [record["reward"] for record in trainer.state.log_history if "reward" in record]


def played(mistral, rows, longest=64):
    return rollout(GRID, 16)([row["prompt"] for row in rows], standing_in(mistral, longest))


def mean_return(mistral, seed):
    """Over 192 episodes, four from each start; its standard error is about .05."""
    torch.manual_seed(seed)
    returns = played(mistral, tasks(GRID) * 4)["episode_return"]
    return sum(returns) / len(returns)


def test_twenty_updates_by_rollouts_make_a_tiny_mistral_better(mistral, tmp_path):
    model, tokenizer = copy.deepcopy(mistral[0]), mistral[1]  # TRL binds its own forward to it
    before = mean_return(mistral, 0)
    args = settings(tmp_path, max_steps=20, learning_rate=2e-3)
    trainer = trainer_of(model, tokenizer, args, rollout_func=rollout(GRID, max_new_tokens=16))
    assert len(trained(trainer)) == 20
    assert mean_return((model, tokenizer), 1) > before + 0.1


def with_adapter(model):
    """The model with an adapter that has learnt something."""
    model = get_peft_model(copy.deepcopy(model), LoraConfig(r=2, target_modules="all-linear"))
    nudge(model, 0.1)
    return model


@pytest.mark.parametrize("prepared", [copy.deepcopy, with_adapter])
def test_a_rollout_is_a_conversation_with_the_models_own_probabilities(mistral, prepared):
    torch.manual_seed(0)
    model = prepared(mistral[0])
    rows, several = played((model, mistral[1]), tasks(GRID)[:24]), 0
    for n, (prompt, ids) in enumerate(zip(rows["prompt_ids"], rows["completion_ids"], strict=True)):
        mask, logprobs = rows["env_mask"][n], rows["logprobs"][n]
        assert len(ids) == len(mask) == len(logprobs)
        several += 0 in mask
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0].float()
        own = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(-1, torch.tensor(ids)[:, None])
        for said, told, log_p in zip(mask, logprobs, own[:, 0].tolist(), strict=True):
            assert told == (pytest.approx(log_p, abs=1e-4) if said else 0.0)
    assert several > 3
    # What the world says is masked, and stands where the chat template has it.
    n = max(range(24), key=lambda n: rows["env_mask"][n].count(0))
    said, mask, decode = rows["completion_ids"][n], rows["env_mask"][n], mistral[1].decode
    text = decode(rows["prompt_ids"][n] + said)
    world = decode([i for i, by_model in zip(said, mask, strict=True) if not by_model])
    assert text.startswith("<s>[INST]") and text.count("[INST]") == 1 + world.count("[INST]")
    assert all(turn.endswith("[/INST]") for turn in world.split("[INST]")[1:])


def test_a_rollout_ends_before_a_turn_that_has_no_room(mistral):
    rows = played(mistral, tasks(GRID)[:24], longest=30)
    assert max(map(len, rows["completion_ids"])) <= 30
    rows = played(mistral, tasks(GRID)[:8], longest=16)
    assert not any(0 in mask for mask in rows["env_mask"])
    # One turn, -.125 or -.625, and then what is no chain, -.625.
    cut = [r for r, well in zip(rows["episode_return"], rows["success"], strict=True) if not well]
    assert cut and {*cut} <= {-0.75, -1.25}
    assert {*rows["num_actions"]} <= {1, 2, 3}  # of the one chain that was played


def test_returns_are_those_of_the_episodes_and_members_of_a_group_begin_alike(mistral):
    (row,) = tasks(GRID, 1)
    rows = played(mistral, [row] * 8)
    assert rows["prompt_ids"] == [rows["prompt_ids"][0]] * 8
    env = make_language_env(GRID)
    text, _ = env.reset(options={"state": env.start_states()[0]}, seed=0)
    assert rows["prompt_ids"][0] == PromptTemplate(mistral[1]).encode(text)
    assert len({*rows["episode_return"]}) > 1
    for earned, success in zip(rows["episode_return"], rows["success"], strict=True):
        assert success == (earned > 0) and earned <= 0.875


def gradient(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])


def by_hand(model, batch):
    """The mean over what the model said of A times the gradient of log π."""
    total, count = 0.0, 0
    for n, ids in enumerate(batch["completion_ids"]):
        given = batch["prompt_ids"][n][batch["prompt_mask"][n] == 1]
        ids = ids[batch["completion_mask"][n] == 1]
        said = batch["tool_mask"][n][: len(ids)]
        logits = model(torch.cat([given, ids])[None]).logits[0, len(given) - 1 : -1]
        log_p = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
        total = total - (batch["advantages"][n] * log_p * said).sum()
        count += said.sum()
    return gradient(model, total / count)


def test_gradients_of_episodes_of_several_turns_are_those_of_what_the_model_said(mistral, tmp_path):
    torch.manual_seed(0)
    model, args = copy.deepcopy(mistral[0]), settings(tmp_path, loss_type="dapo")
    trainer = trainer_of(model, mistral[1], args, rollout_func=rollout(GRID, 16))
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    rows = [dict(row) for row in list(trainer.train_dataset)[::12] for _ in range(8)]
    batch = trainer._generate_and_score_completions(rows)
    own = gradient(trainer.model, trainer._compute_loss(trainer.model, batch))
    assert batch["advantages"].abs().max() > 0.5 and (batch["tool_mask"] == 0).any()
    expected = by_hand(trainer.model, batch)
    assert torch.linalg.norm(own - expected) < 1e-3 * torch.linalg.norm(expected)


def test_a_tool_call_plays_a_chain_and_silence_is_what_is_no_chain():
    player = environment(GRID)()
    with pytest.raises(ConfigError, match="train_dataset: expected a column task"):
        player.reset(prompt=[])
    env = make_language_env(GRID)
    text, _ = env.reset(options={"state": env.start_states()[5]}, seed=5)
    assert player.reset(task=5, prompt=[]) == text
    assert player.get_reward() == -0.625  # neither a chain nor an end
    best = OptimalChains(env).complete(text, 0)
    chain = [name.strip('"') for name in best.strip("[]").split(", ")]
    told = player.play(chain)
    assert told.endswith(OVER) and player.success and player.get_reward() == 0.875
    assert player.play(chain) == OVER and player.get_reward() == 0.875


def test_the_tool_names_the_actions_as_templates_want_it():
    function = get_json_schema(environment(GRID)().play)["function"]
    assert function["name"] == "play" and function["parameters"]["required"] == ["chain"]
    described = function["parameters"]["properties"]["chain"]
    assert described["items"] == {"type": "string"}
    assert "at most 3, each one of 'move forward', 'turn left'" in described["description"]
    words = get_json_schema(environment(WORDLE)().play)["function"]["parameters"]
    assert words["properties"]["chain"]["description"] == "the actions, at most 9."


def test_rows_are_the_start_states_that_may_be_practised_or_as_many_seeds():
    assert [row["task"] for row in tasks(GRID)] == list(range(48))
    assert len(tasks(GRID, 5)) == 5 and len(tasks(GRID, 99)) == 48
    (row,) = tasks(GRID, 1, strategy="direct")
    assert row["prompt"][0]["content"].startswith('Each move is one of: "move forward", "turn')


def test_a_task_has_as_many_dice_as_seeds_are_asked_for():
    lake = EnvironmentConfig("FrozenLake-v1", {"is_slippery": True}, max_chain_length=1)
    rows, once = tasks(lake, seeds=40), tasks(lake)
    assert [row["task"] for row in rows] == 40 * [row["task"] for row in once]
    assert len({row["seed"] for row in rows}) == len(rows) == 40 * 11
    assert not any("seed" in row for row in once)
    player, (_, down, *_) = environment(lake)(), make_language_env(lake).grammar.action_names

    def led_to(row):
        player.reset(**row)
        return player.play([down])

    of_task = rows[:: len(once)]
    assert len({led_to(row) for row in of_task}) == 3  # there, and to both sides
    assert [led_to(row) for row in of_task] == [led_to(row) for row in of_task]
    assert all(row["prompt"][-1]["seed"] == row["seed"] for row in rows)


def test_a_group_of_eight_gets_one_start_state_from_trls_own_trainer(tmp_path):
    model, tokenizer = cloned_qwen(num_steps=0)
    groups = []

    def note(prompts, task, **_):
        texts = [prompt[-1]["content"] for prompt in prompts]
        groups.extend((texts[n : n + 8], task[n : n + 8]) for n in range(0, len(texts), 8))
        return [0.0] * len(prompts)

    args = settings(tmp_path, max_steps=3, max_completion_length=4)
    trainer_of(model, tokenizer, args, note, environment_factory=environment(GRID)).train()
    env = make_language_env(GRID)
    assert len(groups) == 6 and len({task[0] for _, task in groups}) == 6
    for texts, task in groups:
        assert len(texts) == 8 and {*task} == {task[0]}
        assert {*texts} == {env.reset(options={"state": env.start_states()[task[0]]})[0]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_updates_by_tool_calls_make_a_tiny_qwen_better(tmp_path):
    """It has learnt to call the tool, and to call it badly; after fewer steps it forgets calls."""
    model, tokenizer = cloned_qwen(num_steps=600)
    args = settings(tmp_path, max_steps=20, max_completion_length=120)
    trainer = trainer_of(model, tokenizer, args, None, environment_factory=environment(GRID))
    rewards = trained(trainer)
    calls = [r["tools/call_frequency"] for r in trainer.state.log_history if "reward" in r]
    assert len(rewards) == 20 and sum(rewards[10:]) > sum(rewards[:10])
    assert sum(calls) / len(calls) > 0.5
