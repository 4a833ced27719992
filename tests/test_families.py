"""Families of language models: what each computes in its own way is computed, or refused."""

import functools
from pathlib import Path

import families as benchmark
import family_models
import pytest
import torch
from measuring import markdown

from lactchain import ConfigError, LanguageActor, PreferencePair, write_pairs
from lactchain.config.settings import ActorConfig, RunConfig, TrainingConfig
from lactchain.models.attention import FAMILIES, can_read_once, context_length
from lactchain.models.generation.decoding import Decoder
from lactchain.models.loading import context_of
from lactchain.models.prompting import end_of_completion
from lactchain.stages import train_simpo
from lactchain.stages.train_simpo import TrainSimPOConfig
from lactchain.trainers.simpo import PADDING, PreferenceCollator, completion_logprobs

NAMES = {family.name: family for family in family_models.FAMILIES}
REFUSED = [name for name, family in NAMES.items() if family.model_type not in FAMILIES]
READ_ONCE = NAMES.keys() - {*REFUSED, "Gemma 2"}
"""Families of which the library computes attention by sdpa."""
bench_of = functools.cache(lambda name: benchmark.Bench(NAMES[name]))


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_the_docs_is_what_is_measured(name):
    row = markdown(benchmark.HEADER, [benchmark.measured(NAMES[name])])[-1]
    assert row in benchmark.PAGE.read_text("utf-8")
    found = {cell.strip() for cell in row.split("|")[3:8]}
    assert found <= {"refused" if name in REFUSED else "equal", "–"}


def test_every_family_that_is_let_in_stands_in_the_table():
    measured = {family.model_type for family in NAMES.values()}
    assert set(FAMILIES) == measured - {NAMES[name].model_type for name in REFUSED}
    table = benchmark.PAGE.read_text("utf-8").partition(benchmark.BEGIN)[2]
    assert table.count("\n| ") == len(NAMES) + 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_of_another_family_is_refused_in_one_line(name):
    bench = benchmark.Bench(NAMES[name])
    with pytest.raises(ConfigError, match=f"got {NAMES[name].model_type}; use one of") as refusal:
        Decoder(bench.model, 2)
    assert "\n" not in str(refusal.value) and refusal.value.exit_code == 2
    assert (Path(__file__).parent.parent / "docs" / "model_families.md").is_file()


def test_a_prompt_beyond_the_first_context_of_changing_positions_is_refused():
    bench = bench_of("Phi 3 of 128k")
    assert context_length(bench.model.config) == 256 < bench.model.config.max_position_embeddings
    config = ActorConfig(strategy="", decoding="constrained")
    actor = LanguageActor(bench.model, bench.tokenizer, config, benchmark.GRAMMAR)
    assert actor.act(["short"], [0])
    with pytest.raises(ConfigError, match="the model reads 256"):
        actor.act(["long " * 60], [0])


def test_what_is_beyond_the_first_context_is_not_trained_on(tmp_path):
    bench = bench_of("Phi 3 of 128k")
    bench.model.save_pretrained(tmp_path / "phi")
    bench.tokenizer.save_pretrained(tmp_path / "phi")
    actor = ActorConfig(str(tmp_path / "phi"), dtype="float32")
    assert context_of(actor) == 256
    pairs = [PreferencePair(prompt, "[1, 2]", "[2]") for prompt in ("short", "long " * 60)]
    write_pairs(file := tmp_path / "pairs.parquet", pairs)
    run, training = RunConfig(str(tmp_path / "run")), TrainingConfig(max_steps=1, batch_size=1)
    config = TrainSimPOConfig(run=run, actor=actor, pairs=str(file), training=training)
    figures = train_simpo.main(config)
    assert figures["num_pairs"] == 2 and figures["num_dropped_rows"] == 1


ENDS = {
    "Gemma 2": "<end_of_turn>", "Gemma 3 (text)": "<end_of_turn>", "Phi 3, 3.5, 4": "<|end|>",
    "Llama 3": "<|eot_id|>", "Qwen 3": "<|im_end|>", "Granite 3": "<|end_of_text|>",
    "Command R": "<|END_OF_TURN_TOKEN|>", "Mistral 7B v0.3": "</s>",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_completions_end_with_what_the_chat_template_ends_them_with(name):
    tokenizer = family_models.build_tokenizer(NAMES[name])
    assert end_of_completion(tokenizer) == ENDS[name]
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0].content }}"  # without completions
    assert end_of_completion(tokenizer) == tokenizer.eos_token


@pytest.mark.parametrize("name", ["Gemma 2", "Qwen 2 with a window"])
def test_pairs_train_each_family_with_recomputed_layers(name):
    bench = benchmark.Bench(NAMES[name])
    model = bench.model.requires_grad_(True).train()
    row = {"prompt_ids": bench.prompts[0], "chosen_ids": [5, 6, 7], "rejected_ids": [8, 9]}
    batch = PreferenceCollator(0)([row])
    gradients = []
    for recompute in (False, True):
        if recompute:
            model.activation_checkpointing_enable()
        logprobs, _ = completion_logprobs(model, batch, model.dtype)
        model.zero_grad()
        logprobs.sum().backward()
        gradients.append(model.get_input_embeddings().weight.grad.clone())
    assert gradients[0].any()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", sorted(READ_ONCE))
def test_families_compute_the_same_where_a_beginning_is_read_once(name):
    model = bench_of(name).model
    assert can_read_once(model)
    prompts = [[*range(20, 60), *own] for own in ([5], [6, 7, 8], [9, 5])]
    rows = [{"prompt_ids": p, "chosen_ids": [5, 6, 7], "rejected_ids": [8, 9]} for p in prompts]
    found = []
    for share in (False, True):
        batch = PreferenceCollator(0, share)(rows)
        assert ("prefix_ids" in batch) == share
        logprobs, branch = completion_logprobs(model, batch, model.dtype)
        found.append(logprobs[branch != PADDING])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_other_families_read_each_row():
    others = [bench_of(name).model for name in NAMES.keys() - READ_ONCE]
    assert not any(map(can_read_once, others))


def test_no_text_is_longer_than_a_window():
    found = {name: context_length(bench_of(name).model.config) for name in NAMES}
    assert {found[name] for name in ("Mistral 7B v0.1", "Gemma 3 (text)", "OLMo 3")} == {512}
    assert found["Mistral 7B v0.3"] == found["Qwen 2, 2.5"] == 1024
