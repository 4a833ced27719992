"""What the trainers compute, on data small enough to know the answer."""

import copy
import errno
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_setups import (
    MAKERS,
    NUM_UPDATES,
    STATES,
    TRAINING,
    build_weights,
    chain_of,
    episodes,
    exit_codes,
    final_state,
    logs,
    make_cloning,
    make_critic,
    make_simpo,
    open_run,
    train_here,
    train_on_two,
)

from lactchain.checkpoints import latest_checkpoint
from lactchain.errors import ConfigError, DataError, DiskError, Interrupted
from lactchain.manifests import verify_manifest, write_manifest
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.runtime import device
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.run import read_metrics
from lactchain.settings import ActorConfig, CriticConfig
from lactchain.trainers import guards
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.behavior_cloning import cloning_rows
from lactchain.trainers.critic import (
    EpisodeTable,
    RegressionRows,
    return_scale,
    split_episodes,
)
from lactchain.trainers.guards import metric_key
from lactchain.trainers.simpo import (
    PreferenceCollator,
    SimPOTrainer,
    drop_reason,
    preference_rows,
    seen_in_branch,
)
from lactchain.types import Action, PreferencePair, Trajectory

KINDS = pytest.mark.parametrize("kind", MAKERS)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return build_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def tokenizer(weights):
    return load_actor(ActorConfig(str(weights / "actor")))[1]


@pytest.fixture(scope="module")
def critic(weights):
    return EmbeddingCritic.from_config(CriticConfig(str(weights / "encoder"), gamma=0.5))


def changed(extra=None, **values):
    """The common training settings with some replaced; no warm-up, constant learning rate."""
    constant = {"lr_scheduler_type": "constant", "warmup_steps": 0}
    return replace(TRAINING, extra=TRAINING.extra | constant | (extra or {}), **values)


def trajectory(rewards, *, terminated, states=STATES):
    """One chain of one action per reward."""
    steps = len(rewards)
    return Trajectory(
        env_id="test/Env-v0",
        seed=0,
        observations=tuple(states[: steps + 1]),
        actions=tuple(Action(chain_of(1 + t)) for t in range(steps)),
        rewards=tuple(rewards),
        infos=({}, *({"rewards": [r], "executed": ["turn left"]} for r in rewards)),
        terminated=terminated,
        truncated=not terminated,
    )


# Arguments


def test_arguments_suit_the_machine_and_keep_what_people_set(tmp_path):
    args = training_arguments(TRAINING, tmp_path, 3, report_to=[])
    assert args.use_cpu == (device().type == "cpu")
    assert not args.bf16
    assert not args.logging_nan_inf_filter
    assert (args.seed, args.data_seed, args.report_to) == (3, 3, [])
    assert args.save_total_limit is None
    assert args.get_warmup_steps(100) == 10


def test_without_an_interval_only_the_end_is_saved(tmp_path):
    args = training_arguments(changed(save_every_updates=0), tmp_path, 0)
    assert args.save_steps > 10**8


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("learning_rat", "no such argument"),
        *((name, "set by") for name in ("learning_rate", "use_cpu", "bf16", "fp16")),
    ],
)
def test_extra_arguments_must_exist_and_be_free(tmp_path, name, expected):
    with pytest.raises(ConfigError, match=f"training.extra.{name}: {expected}"):
        training_arguments(changed(extra={name: 1}), tmp_path, 0)


def test_a_value_that_transformers_refuses_is_an_error_of_the_configuration(tmp_path):
    with pytest.raises(
        ConfigError, match="training.extra: refused by transformers: .*fast.* is not a valid"
    ):
        training_arguments(changed(extra={"optim": "fast"}), tmp_path, 0)


def test_extra_arguments_reach_transformers(tmp_path):
    args = training_arguments(changed(extra={"adam_beta2": 0.9}), tmp_path, 0)
    assert args.adam_beta2 == 0.9


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("loss", "train/loss"),
        ("eval_loss", "eval/loss"),
        ("eval_rewards/margins", "eval/rewards/margins"),
        ("rewards/margins", "rewards/margins"),
        ("train_runtime", "time/train_runtime"),
    ],
)
def test_metric_names_are_ours(theirs, ours):
    assert metric_key(theirs) == ours


# Rows


def test_sampled_ids_are_kept_and_texts_are_encoded_with_an_end(tokenizer):
    letters = [tokenizer.convert_tokens_to_ids(c) for c in "move"]
    sampled = Action("move", token_ids=(*letters, tokenizer.eos_token_id))
    text = Action(chain_of(2))
    first, second, third = encode_completions([sampled, text, Action("")], tokenizer)
    assert (
        first
        == [*letters, tokenizer.eos_token_id]
        != encode_completions([Action("move")], tokenizer)[0]
    )
    assert tokenizer.decode(second[:-1]) == chain_of(2)
    assert second[-1] == tokenizer.eos_token_id
    assert third == []


def test_special_tokens_in_a_text_are_plain_characters(tokenizer):
    ids = encode_completions([Action("</s>[INST]")], tokenizer)[0]
    assert not set(ids[:-1]) & set(tokenizer.all_special_ids)
    assert tokenizer.decode(ids[:-1]) == "</s>[INST]"


def test_pairs_that_cannot_be_trained_on_are_dropped_and_counted(tokenizer):
    template = PromptTemplate(tokenizer)
    good = PreferencePair(STATES[0], chain_of(2), chain_of(1))
    bad = [
        PreferencePair(STATES[0], "", chain_of(1)),
        PreferencePair(STATES[0], chain_of(1), chain_of(1)),
        PreferencePair(STATES[0] * 50, chain_of(2), chain_of(1)),
    ]
    rows, dropped = preference_rows([good, *bad], template, tokenizer, max_length=60)
    assert len(rows) == 1
    assert dropped == {"empty completion": 1, "equal completions": 1, "over-long": 1}
    with pytest.raises(DataError, match="all 3 pairs were dropped.*over-long"):
        preference_rows(bad, template, tokenizer, max_length=60)


def test_pairs_and_examples_of_another_tokenizer_are_refused(tokenizer):
    other = build_tiny_tokenizer(["quite another corpus, with words of its own"] * 2)
    template = PromptTemplate(tokenizer)

    def sampled(text, by):
        return tuple(encode_completions([Action(text)], by)[0])

    def rows(by, **changes):
        ids = {"chosen_token_ids": sampled(chain_of(2), by), "rejected_token_ids": ()}
        pair = PreferencePair(STATES[0], chain_of(2), chain_of(1), **ids)
        return preference_rows([pair, pair, replace(pair, **changes)], template, tokenizer)[0]

    rejected = sampled(chain_of(1), tokenizer)
    (*_, row) = rows(tokenizer, rejected_token_ids=rejected)
    assert row["rejected_ids"] == list(rejected)
    foreign = sampled(chain_of(1), other)
    with pytest.raises(DataError, match=r"pairs: row 2, rejected completion: its tokens read .*, "
                       r"its text is '\[.*make the data anew"):  # fmt: skip
        rows(tokenizer, rejected_token_ids=foreign)
    with pytest.raises(DataError, match="pairs: row 0, chosen completion: its tokens read"):
        rows(other)
    beyond = (*rejected[:-1], len(tokenizer) + 7)  # such as the other's end of sequence
    with pytest.raises(DataError, match=f"its token {beyond[-1]} is none of the {len(tokenizer)} "):
        rows(tokenizer, rejected_token_ids=beyond)
    with pytest.raises(DataError, match="examples: row 1: its tokens read"):
        cloning_rows(
            [(STATES[0], Action(chain_of(1))), (STATES[0], Action(chain_of(1), foreign))],
            template,
            tokenizer,
        )


def test_sampled_ids_that_read_as_half_a_character_are_kept(tokenizer):
    bytes_of = tokenizer("é漢", add_special_tokens=False)["input_ids"]
    for cut in range(1, len(bytes_of)):
        ids = tuple(bytes_of[:cut])
        action = Action(tokenizer.decode(ids), ids, stop_reason="length")
        assert encode_completions([action], tokenizer) == [list(ids)]
    special = (tokenizer.bos_token_id, *bytes_of, tokenizer.eos_token_id)
    action = Action(tokenizer.decode(special[:-1]), special)
    assert encode_completions([action], tokenizer) == [list(special)]


def test_a_row_without_prompt_has_nothing_to_predict_from():
    row = {"prompt_ids": [], "chosen_ids": [1], "rejected_ids": [2]}
    assert drop_reason(row) == "empty prompt"


def test_both_completions_follow_one_prompt_and_do_not_see_each_other():
    rows = [
        {"prompt_ids": [7, 8], "chosen_ids": [9, 1], "rejected_ids": [1]},
        {"prompt_ids": [7], "chosen_ids": [9, 1], "rejected_ids": [5, 5, 1]},
    ]
    batch = PreferenceCollator(pad_token_id=0)(rows)
    assert batch["input_ids"].tolist() == [[7, 8, 9, 1, 8, 1, 0], [7, 9, 1, 7, 5, 5, 1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 1, 2, 0], [0, 1, 2, 0, 1, 2, 3]]
    assert batch["branch"].tolist() == [[0, 1, 1, 1, 2, 2, 3], [1, 1, 1, 2, 2, 2, 2]]
    assert batch["completion_mask"].tolist() == [[0, 0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 1, 1, 1]]
    visible = seen_in_branch(batch["branch"])[0].int().tolist()
    assert visible == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 1, 1, 0],
        [1, 0, 0, 0, 0, 0, 1],
    ]


def test_cloning_learns_completions_only(tokenizer):
    template = PromptTemplate(tokenizer)
    examples = [(STATES[0], Action(chain_of(1))), (STATES[1], Action(""))]
    rows, dropped = cloning_rows(examples, template, tokenizer)
    (row,) = rows
    prompt = template.encode(STATES[0])
    completion = encode_completions([Action(chain_of(1))], tokenizer)[0]
    assert row["input_ids"] == prompt + completion
    assert row["labels"] == [-100] * len(prompt) + completion
    assert dropped == {"empty completion": 1}


def test_the_cloning_loss_is_that_of_each_completion_by_itself(weights, run_dir):
    with open_run(run_dir) as run:
        trainer = make_cloning(weights, run, lora=False)
    trainer.model.eval()
    rows = [trainer.train_dataset[i] for i in range(len(trainer.train_dataset))]
    assert len({len(row["input_ids"]) for row in rows}) > 1
    logps = []
    for row in rows:
        logits = trainer.model(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1)
        labels = enumerate(row["labels"])
        logps += [logits[i - 1, label].item() for i, label in labels if label != -100]
    batch = trainer.data_collator(rows)
    assert len(batch["logits_to_keep"]) < batch["input_ids"].shape[1]
    loss = trainer.compute_loss(trainer.model, batch).item()
    np.testing.assert_allclose(loss, -np.mean(logps), rtol=1e-5)


# The critic's targets


@pytest.mark.parametrize("terminated", [True, False])
def test_monte_carlo_targets_are_the_returns_of_trajectories(critic, terminated):
    found = episodes(terminated, num_rows=50)
    table = EpisodeTable(found, critic)
    values = torch.randn(len(table.inputs), generator=torch.Generator().manual_seed(0))
    texts = list(dict.fromkeys(text for t in found for text in t.observations))
    value_of = dict(zip(texts, values.tolist(), strict=True))
    expected = sorted(
        (text, target)
        for t in found
        for text, target in zip(
            t.observations, t.returns(0.5, final_value=value_of[t.observations[-1]]), strict=False
        )
    )
    read = [texts[index] for index in table.row_inputs]
    actual = sorted(zip(read, table.targets(values).tolist(), strict=True))
    assert [text for text, _ in actual] == [text for text, _ in expected]
    np.testing.assert_allclose([x for _, x in actual], [x for _, x in expected])
    assert table.needs_values is not terminated


def test_last_chain_of_a_cut_episode_is_the_bootstrap_of_a_critic_of_chains(weights):
    critic = EmbeddingCritic.from_config(
        CriticConfig(str(weights / "encoder"), gamma=0.5, mode="action_value")
    )
    cut = [trajectory([1.0, 2.0, 4.0], terminated=False), trajectory([8.0], terminated=False)]
    table = EpisodeTable(cut, critic)
    values = torch.tensor([10.0, 20.0, 30.0, 40.0])[: len(table.inputs)]
    # 2 + .5 * Q(s_2, chain_2) = 17; 1 + .5 * 17; the one-step episode has nothing to go on
    assert table.targets(values).tolist() == [9.5, 17.0]
    ended = EpisodeTable([trajectory([1.0, 2.0, 4.0], terminated=True)], critic)
    assert ended.targets(values).tolist() == [3.0, 4.0, 4.0]


def test_silence_is_no_row_and_the_return_passes_through_it(critic):
    spoken = trajectory([-1.0, 0.0, -1.0], terminated=True)
    spoken.infos[2]["unheard"] = True
    table = EpisodeTable([spoken], critic)
    assert len(table) == 2
    assert table.targets(torch.zeros(len(table.inputs))).tolist() == [-1.5, -1.0]
    # √((1.5² + 1²) / 2)
    assert return_scale([spoken], 0.5, "action") == pytest.approx(1.625**0.5)
    silent = trajectory([0.0], terminated=False)
    silent.infos[1]["unheard"] = True
    with pytest.raises(DataError, match="expected completions that are chains, got none"):
        return_scale([silent], 0.5, "action")


def test_episodes_without_decisions_are_left_out(critic):
    empty = trajectory([], terminated=True)
    table = EpisodeTable([empty, trajectory([1.0], terminated=True)], critic)
    assert len(table) == 1
    with pytest.raises(ValueError, match="at least one decision"):
        EpisodeTable([empty], critic)


def test_rows_of_equal_texts_give_the_gradient_of_all_decisions(critic):
    table = EpisodeTable(episodes(num_rows=200), critic)
    targets = table.targets(torch.zeros(len(table.inputs)))
    rows = RegressionRows(table)
    rows.renew(targets)
    assert len(rows) == len(set(table.row_inputs.tolist())) < 200
    decisions = (table.row_inputs, targets, torch.ones(200))
    gradients = []
    for read, target, weight in (decisions, (rows._input_of, rows.targets, rows.weights)):
        values = torch.zeros(len(table.inputs), dtype=torch.double, requires_grad=True)
        (weight * (values[read] - target).square()).mean().backward()
        gradients.append(values.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_scores_of_a_perfect_and_of_a_constant_critic(critic):
    table = EpisodeTable(
        [trajectory([1.0], terminated=True), trajectory([3.0], terminated=True, states=STATES[5:])],
        critic,
    )
    perfect = torch.zeros(len(table.inputs))
    perfect[table.row_inputs] = torch.tensor([1.0, 3.0])
    assert table.scores(perfect)["r2"] == 1.0
    constant = table.scores(torch.full_like(perfect, 2.0))
    assert constant == {
        "r2": 0.0, "rmse": 1.0, "value_mean": 2.0, "return_mean": 2.0, "return_std": 1.0
    }  # fmt: skip


def test_r2_of_equal_returns_is_not_a_number(critic):
    table = EpisodeTable([trajectory([1.0], terminated=True)], critic)
    assert np.isnan(table.scores(torch.zeros(len(table.inputs)))["r2"])


def test_held_out_episodes_are_whole_and_reproducible():
    found = episodes(num_rows=40)
    train_set, held_out = split_episodes(found, 0.25, seed=1)
    assert len(held_out) == len(found) // 4
    assert {t.seed for t in train_set} | {t.seed for t in held_out} == {t.seed for t in found}
    assert split_episodes(found, 0.25, seed=1)[1] == held_out
    assert split_episodes(found, 0.0, seed=1)[1] == []


def test_return_scale_is_a_root_mean_square_and_never_zero():
    assert return_scale([trajectory([3.0], terminated=True)], 0.9, "action") == 3.0
    assert return_scale([trajectory([0.0], terminated=True)], 0.9, "action") == 1.0


# Training


def test_simpo_learns_to_prefer_the_chosen_completions(weights, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(
            weights, run, lora=False, settings=changed(num_epochs=12, batch_size=10)
        )
        train(trainer)
    metrics = [m for m in read_metrics(run_dir) if "train/loss" in m]
    assert metrics[0]["rewards/margins"] < 0.5
    assert metrics[-1]["rewards/accuracies"] > 0.9
    assert metrics[-1]["rewards/margins"] > metrics[0]["rewards/margins"] + 1.0
    completions = ("chosen", "rejected")
    keys = [f"{name}/{which}" for name in ("rewards", "logps", "lengths") for which in completions]
    for key in (*keys, "train/nll_loss", "train/grad_norm", "train/learning_rate"):
        assert np.isfinite(metrics[-1][key])


def test_critic_learns_returns_and_is_measured_on_held_out_episodes(weights, run_dir):
    settings = changed(num_epochs=60, batch_size=16, gradient_accumulation_steps=1)
    with open_run(run_dir) as run:
        trainer = make_critic(weights, run, lora=False, settings=settings, terminated=True)
        # The reward is the state's first number, so one-step episodes have exact returns.
        one_step = [trajectory([float(s[0])], terminated=True, states=[s, s]) for s in STATES]
        trainer.table = EpisodeTable(one_step[::2], trainer.critic)
        trainer.train_dataset = RegressionRows(trainer.table)
        train(trainer)
        held_out = EpisodeTable(one_step[1::2], trainer.critic)
        metrics = trainer.evaluate(held_out)
    assert metrics["eval_r2"] > 0.9
    assert read_metrics(run_dir)[-1]["eval/r2"] == pytest.approx(metrics["eval_r2"])


def test_cloning_learns_the_completions(weights, run_dir):
    with open_run(run_dir) as run:
        train(
            make_cloning(
                weights, run, lora=False, settings=changed(num_epochs=8, learning_rate=1e-2)
            )
        )
    losses = [m["train/loss"] for m in read_metrics(run_dir) if "train/loss" in m]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("kind", ["simpo", "critic"])
def test_accumulated_small_batches_equal_one_large_batch(kind, weights, tmp_path):
    """Exact for losses that are means over rows; SimPO's NLL is a mean over tokens, so left out."""
    parameters = []
    for batch_size, accumulation in ((8, 1), (2, 4)):
        settings = changed(
            batch_size=batch_size,
            gradient_accumulation_steps=accumulation,
            max_steps=2,
            extra={"optim": "sgd", "max_grad_norm": 1e9},
        )
        with open_run(tmp_path / f"run-{batch_size}") as run:
            options = {"terminated": True} if kind == "critic" else {}
            trainer = MAKERS[kind](weights, run, lora=False, settings=settings, **options)
            if kind == "simpo":
                trainer.settings = type(trainer.settings)(nll_weight=0.0)
            train(trainer)
        parameters.append([p.detach() for p in trainer.model.parameters()])
    for large, small in zip(*parameters, strict=True):
        torch.testing.assert_close(large, small, atol=1e-6, rtol=1e-5)


@KINDS
def test_recomputed_activations_change_nothing(kind, weights, tmp_path):
    parameters = []
    for checkpointing in (False, True):
        settings = changed(max_steps=2, gradient_checkpointing=checkpointing)
        with open_run(tmp_path / f"run-{checkpointing}") as run:
            trainer = MAKERS[kind](weights, run, lora=True, settings=settings)
            train(trainer)
        parameters.append([p.detach() for p in trainer.model.parameters() if p.requires_grad])
    for kept, recomputed in zip(*parameters, strict=True):
        torch.testing.assert_close(kept, recomputed)


def test_attention_that_takes_no_mask_is_refused(weights, run_dir):
    with open_run(run_dir) as run:
        ready = make_simpo(weights, run, lora=True)
        ready.model.config._attn_implementation = "flash_attention_2"
        with pytest.raises(ConfigError, match="expected sdpa or eager.*got flash_attention_2"):
            SimPOTrainer(
                ready.model,
                ready.args,
                ready.train_dataset,
                ready.processing_class,
                ready.settings,
                run=run,
            )


@KINDS
def test_metrics_are_complete_and_in_order(kind, weights, run_dir):
    train_here(kind, weights, run_dir, {"lora": True})
    steps = [m["step"] for m in read_metrics(run_dir)]
    assert steps == [2, 4, 6, 8, 9]


@KINDS
def test_trained_model_can_be_copied(kind, weights, run_dir):
    """accelerate replaces `forward` by a closure, which in a copy would use the original."""
    with open_run(run_dir) as run:
        trainer = MAKERS[kind](weights, run, lora=True, settings=changed(max_steps=1))
        train(trainer)
    duplicate = copy.deepcopy(trainer.model).eval()
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter.zero_()
    ids = torch.tensor([[5, 6, 7]])
    model = duplicate.trunk if kind in ("ilql", "mc") else duplicate
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    values = output if kind == "critic" else output.logits
    assert values.abs().sum() > 0


def test_targets_of_a_bootstrapping_critic_are_renewed_once_per_epoch(weights, run_dir):
    with open_run(run_dir) as run:
        trainer = make_critic(weights, run, lora=True)
        seen = []
        renew = trainer.train_dataset.renew
        trainer.train_dataset.renew = lambda targets: (seen.append(targets), renew(targets))
        train(trainer)
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])


def test_targets_without_bootstrap_are_computed_once_and_not_stored(weights, run_dir):
    options = {"lora": True, "terminated": True}
    train_here("critic", weights, run_dir, options)
    folder = run_dir / "checkpoints" / f"checkpoint-{NUM_UPDATES}"
    assert not (folder / "targets.safetensors").exists()


def test_old_checkpoints_go_when_newer_ones_are_verified(weights, run_dir):
    train_here("simpo", weights, run_dir, {"lora": True})
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert names == ["checkpoint-8", "checkpoint-9"]


def test_damaged_checkpoint_is_replaced_by_the_one_before(weights, run_dir, caplog):
    train_here("simpo", weights, run_dir, {"lora": True})
    expected = final_state(run_dir)
    file = run_dir / "checkpoints" / "checkpoint-9" / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with caplog.at_level("WARNING"):
        train_here("simpo", weights, run_dir, {"lora": True})
    assert "checkpoint-9" in caplog.text
    assert "damaged" in caplog.text
    assert final_state(run_dir) == expected


def test_checkpoint_of_another_launch_is_refused(weights, run_dir):
    train_here("simpo", weights, run_dir, {"lora": True})
    with open_run(run_dir) as run:
        trainer = make_simpo(weights, run, lora=True)
        trainer.provenance["threads"] = 7
        with pytest.raises(DataError, match="threads was 1, is 7"):
            train(trainer)
        trainer.provenance["world_size"] = 2
        with pytest.raises(DataError, match=r"world_size was 1, is 2.*; launch it as before"):
            train(trainer)


# Two processes


@pytest.mark.parametrize(
    "kind", ["simpo", "critic", pytest.param("cloning", marks=pytest.mark.slow)]
)
def test_two_processes_resume_bit_exactly(kind, weights, run_dir):
    """19 rows on 2 x 4 x 2 per update: two updates an epoch, resumed in the middle of the last."""
    settings = changed(save_every_updates=1)
    options = {"lora": True, "keep_checkpoints": 9, "settings": settings}
    assert exit_codes(train_on_two(kind, weights, run_dir, options)) == [0, 0], logs(run_dir)
    expected = final_state(run_dir, step=6)
    assert {name for name in expected if name.startswith("rng_state_1")}
    folder = run_dir / "checkpoints"
    assert verify_manifest(folder / "checkpoint-5")["world_size"] == 2
    shutil.rmtree(folder / "checkpoint-6")
    assert exit_codes(train_on_two(kind, weights, run_dir, options)) == [0, 0], logs(run_dir)
    assert final_state(run_dir, step=6) == expected


def test_a_signal_to_one_process_stops_both_and_saves(weights, run_dir):
    options = {"lora": True, "settings": changed(num_epochs=10_000, save_every_updates=0)}
    processes = train_on_two("critic", weights, run_dir, options)
    while len(read_metrics(run_dir)) < 2:
        time.sleep(0.05)
    processes[1].terminate()
    assert exit_codes(processes) == [143, 143], logs(run_dir)
    stopped_at = latest_checkpoint(run_dir / "checkpoints")
    assert verify_manifest(stopped_at)["global_step"] >= 4
    assert "give the same command to go on" in logs(run_dir)


def test_a_bad_loss_on_one_process_stops_both(weights, run_dir):
    processes = train_on_two("simpo", weights, run_dir, {"lora": True}, 1)
    assert exit_codes(processes) == [4, 4], logs(run_dir)
    batches = sorted(path.name for path in (run_dir / "nonfinite").iterdir())
    assert batches == ["step-4-rank-0.safetensors", "step-4-rank-1.safetensors"]
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-2"


# Interruptions and disks


def test_a_signal_while_targets_are_computed_saves_what_was_trained(weights, run_dir, monkeypatch):
    """At an epoch's beginning; without any other checkpoint, and bit-exact."""
    options = {"lora": True, "settings": changed(save_every_updates=0)}
    train_here("critic", weights, run_dir.with_name("whole"), options)
    with open_run(run_dir) as run:
        trainer = make_critic(weights, run, **options)
        stop = {3: signal.SIGTERM}
        monkeypatch.setattr(guards, "stop_requested", lambda: 0)
        values = trainer.values

        def interrupted(inputs):
            number = stop.pop(trainer.state.global_step, 0)
            monkeypatch.setattr(guards, "stop_requested", lambda: number)
            return values(inputs)

        trainer.values = interrupted
        with pytest.raises(Interrupted):
            train(trainer)
    monkeypatch.undo()
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-3"
    train_here("critic", weights, run_dir, options)
    assert final_state(run_dir) == final_state(run_dir.with_name("whole"))


def test_a_signal_in_an_evaluation_ends_it_at_once(weights, run_dir, monkeypatch):
    with open_run(run_dir) as run:
        trainer = make_critic(weights, run, lora=True, settings=changed(max_steps=2))
        train(trainer)
        monkeypatch.setattr(guards, "stop_requested", lambda: signal.SIGINT)
        with pytest.raises(Interrupted, match="after step 2.*give the same command") as stop:
            trainer.evaluate(trainer.table)
    assert stop.value.exit_code == 130


def test_evaluation_leaves_no_trace_in_the_random_state(weights, run_dir):
    with open_run(run_dir) as run:
        critic_trainer = make_critic(weights, run, lora=True, settings=changed(max_steps=1))
        before = torch.get_rng_state()
        critic_trainer.evaluate(critic_trainer.table)
        assert torch.equal(torch.get_rng_state(), before)


def test_simpo_is_measured_on_held_out_pairs(weights, run_dir):
    with open_run(run_dir) as run:
        trainer = make_simpo(weights, run, lora=True)
        trainer.evaluate(trainer.train_dataset)
    (metrics,) = read_metrics(run_dir)
    assert metrics["eval/rewards/margins"] == pytest.approx(
        metrics["eval/rewards/chosen"] - metrics["eval/rewards/rejected"]
    )
    assert np.isfinite(metrics["eval/loss"])


@pytest.mark.parametrize("kind", MAKERS)
def test_full_disk_ends_with_its_name_and_the_last_checkpoint_stands(
    kind, weights, run_dir, monkeypatch
):
    """The optimiser's file falls short as torch reports it, in the second save."""
    with open_run(run_dir) as run:
        trainer = MAKERS[kind](weights, run, lora=True)
        save = trainer._save_optimizer_and_scheduler

        def full(directory):
            if trainer.state.global_step > 2:
                (Path(directory) / "optimizer.pt").write_bytes(b"cut")
                raise OSError(errno.ENOSPC, "No space left on device")
            save(directory)

        trainer._save_optimizer_and_scheduler = full
        with pytest.raises(DiskError, match="checkpoint-4: could not be written.*free"):
            train(trainer)
    assert latest_checkpoint(run_dir / "checkpoints").name == "checkpoint-2"
    train_here(kind, weights, run_dir, {"lora": True})
    assert latest_checkpoint(run_dir / "checkpoints").name == f"checkpoint-{NUM_UPDATES}"


def test_checkpoint_of_another_run_is_neither_resumed_nor_kept(weights, run_dir):
    train_here("simpo", weights, run_dir, {"lora": True})
    expected = final_state(run_dir)
    folder = run_dir / "checkpoints"
    stray = run_dir.parent / "another/checkpoint-50"
    shutil.move(folder / "checkpoint-9", stray)
    (stray.parent / "environment.json").write_text('{"run_id": "another"}')
    write_manifest(stray, {"global_step": 50})
    shutil.move(stray, folder)
    train_here("simpo", weights, run_dir, {"lora": True})
    assert final_state(run_dir) == expected


def test_a_damaged_checkpoint_is_set_aside_and_one_with_a_foreign_file_is_used(weights, run_dir):
    train_here("simpo", weights, run_dir, {"lora": True})
    expected = final_state(run_dir)
    folder = run_dir / "checkpoints"
    (folder / "checkpoint-8" / ".DS_Store").touch()
    (folder / "checkpoint-9" / "optimizer.pt").write_bytes(b"cut")
    train_here("simpo", weights, run_dir, {"lora": True})
    assert final_state(run_dir) == expected
    assert verify_manifest(folder / "checkpoint-9")["parent"] == "checkpoint-8"
    assert (folder / "set-aside-1-checkpoint-9" / "optimizer.pt").read_bytes() == b"cut"
