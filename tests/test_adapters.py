"""Adapters are loaded onto the model that they were trained on, and onto no other."""

import json
import shutil
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from script_setups import GRID
from test_loading import IDS, LORA, cut, edit_json, refused, text
from test_tiny_models import SMALL
from training_setups import nudge
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from lactchain import (
    ActorConfig,
    ConfigError,
    CriticConfig,
    DataError,
    EmbeddingCritic,
    make_language_env,
)
from lactchain.models import adapters
from lactchain.models.actor import LanguageActor
from lactchain.models.adapters import base_checksum, save_adapter, tokenizer_checksum
from lactchain.models.loading import load_actor
from lactchain.models.weights import ADAPTER_FILES, ADAPTER_RECORD, weights_in
from lactchain.storage.manifests import write_manifest, write_run_file


def trained(config: ActorConfig, seed: int = 0):
    torch.manual_seed(seed)
    model, _ = load_actor(replace(config, lora=LORA), trainable=True)
    nudge(model, 0.1)
    return model


@pytest.fixture
def adapter(config, tmp_path) -> Path:
    save_adapter(trained(config), tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_comes_back_bit_for_bit_without_a_word(config, adapter, capfd):
    model, _ = load_actor(replace(config, adapter=str(adapter)))
    assert capfd.readouterr() == ("", "")
    expected, other = trained(config).eval(), trained(config, seed=1)
    assert torch.equal(model(IDS).logits, expected(IDS).logits)
    assert not model.training and not any(w.requires_grad for w in model.parameters())
    assert adapters.adapter_effect(model) > 0
    adapters.load_adapter_weights(other, adapter)  # into one that is in use
    assert torch.equal(other.eval()(IDS).logits, expected(IDS).logits)


def test_an_actor_with_an_adapter_is_called_by_it(config, adapter):
    grammar = make_language_env(GRID).grammar
    actor = LanguageActor.from_config(replace(config, adapter=str(adapter)), grammar)
    assert actor.name == f"{adapter} (free)"


def test_the_same_adapter_is_the_same_bytes_in_every_process(config, adapter, tmp_path):
    """Sets of names have another order in each; of the base model it holds nothing."""
    save_adapter(load_actor(replace(config, adapter=str(adapter)))[0], tmp_path / "again")
    for folder in (adapter, tmp_path / "again"):
        names = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
        assert names == sorted(names) and len(names) > 5
        keys = load_file(folder / ADAPTER_FILES[1]).keys()
        assert len(keys) == 2 * 7 * SMALL.num_layers and all("lora_" in key for key in keys)


def test_a_new_adapter_changes_nothing_and_only_training_may_start_from_it(config, tmp_path):
    model, _ = load_actor(replace(config, lora=LORA), trainable=True)
    assert adapters.adapter_effect(model) == 0
    save_adapter(model, tmp_path)
    fresh = replace(config, adapter=str(tmp_path))
    load_actor(fresh, trainable=True)
    refused(fresh, "never trained")


def test_a_base_may_move_but_neither_it_nor_its_tokenizer_may_be_another(adapter, actor, small):
    moved = ActorConfig(model=str(actor), adapter=str(adapter))
    load_actor(moved)
    (actor / "chat_template.jinja").write_text("{{ messages[0].content }}")
    refused(moved, "another tokenizer")
    other = ActorConfig(model=str(small / "other-actor"), adapter=str(adapter))
    refused(other, "another base model: expected .*actor")


@pytest.mark.parametrize(("change", "message"), [
    (lambda w: {k.replace(".model.", ".model.model.", 1): v for k, v in w.items()}, "not fit"),
    (lambda w: dict(sorted(w.items())[1:]), "not fit this model"),
    (lambda w: {**w, "base_model.model.lm_head.lora_A.weight": torch.ones(2, 32)}, "not fit"),
    (lambda w: {k: torch.cat([v, v], int("lora_B" in k)) for k, v in w.items()}, "not fit"),
    (lambda w: {k: v * ("lora_B" in k) for k, v in w.items()}, "does not change the outputs"),
], ids=["one model more", "a key less", "a key more", "another rank", "no effect"])  # fmt: skip
def test_an_adapter_that_does_not_fit_or_does_nothing_is_refused(config, adapter, change, message):
    file = adapter / ADAPTER_FILES[1]
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    adapters.write_adapter_record(adapter, config.model)  # as another program might
    refused(replace(config, adapter=str(adapter)), message)


def test_adapters_of_actor_and_critic_do_not_swap(config, small, tmp_path):
    critic_config = CriticConfig(model=str(small / "encoder"), lora=LORA)
    critic = EmbeddingCritic.from_config(critic_config, trainable=True)
    critic.save(tmp_path / "critic")
    swapped = replace(config, adapter=str(tmp_path / "critic"))
    refused(swapped, "another base model")
    adapters.write_adapter_record(tmp_path / "critic", config.model)
    refused(swapped, "does not fit this model")


def test_what_is_no_adapter_of_low_rank_is_refused(config, adapter, small, tmp_path):
    edit_json(adapter / ADAPTER_FILES[0], peft_type="IA3", feedforward_modules=[])
    adapters.write_adapter_record(adapter, config.model)
    refused(replace(config, adapter=str(adapter)), "expected a LORA adapter")
    refused(replace(config, adapter=str(small / "other-actor")), "whole model")
    refused(replace(config, adapter=str(tmp_path / "gone")), "gone")


@pytest.mark.parametrize(
    ("damage", "name"),
    [*product([Path.unlink, cut, text], ADAPTER_FILES), *product([cut, text], [ADAPTER_RECORD])],
)
def test_missing_and_damaged_files_of_an_adapter_are_named(config, adapter, name, damage):
    damage(adapter / name)
    refused(replace(config, adapter=str(adapter)), name)


@pytest.mark.parametrize("entry", ["base", "base_fingerprint", "tokenizer_fingerprint", "sha256"])
def test_an_entry_that_the_record_of_an_adapter_lacks_is_named(entry, adapter):
    edit_json(adapter / ADAPTER_RECORD, **{entry: None})
    with pytest.raises(DataError, match=f"{ADAPTER_RECORD}: damaged .*'{entry}'.*; train"):
        weights_in(adapter)


def test_an_adapter_in_a_run_that_was_moved_stands_on_the_base_in_it(config, small, tmp_path):
    """Also where the run is a copy, and the other one is still there."""
    run = tmp_path / "run"
    shutil.copytree(small / "actor", run / "base")
    write_run_file(run, {"run_id": "1"})
    write_manifest(run / "base", {})
    save_adapter(trained(replace(config, model=str(run / "base"))), run / "simpo/actor")
    shutil.copytree(run, tmp_path / "copy")
    found = weights_in(tmp_path / "copy/simpo/actor")
    assert found["model"] == str(tmp_path / "copy/base")


def test_checksums_tell_bases_apart_and_ignore_what_does_not_matter(small, actor):
    original = base_checksum(small / "actor")
    assert base_checksum(actor) == original != base_checksum(small / "other-actor")
    edit_json(actor / "config.json", transformers_version="9.9", dtype="bfloat16")
    assert base_checksum(actor) == original
    file = actor / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert base_checksum(actor) != original
    assert tokenizer_checksum(actor) == tokenizer_checksum(small / "actor")
    assert tokenizer_checksum(actor) != tokenizer_checksum(small / "other-tokenizer")


def test_the_tokenizers_identity_sees_chat_templates_wherever_they_are(small, actor):
    identity = tokenizer_checksum(actor)
    template = (actor / "chat_template.jinja").read_text()
    (actor / "chat_template.jinja").unlink()
    without = tokenizer_checksum(actor)
    edit_json(actor / "tokenizer_config.json", chat_template=template)  # as Mistral v0.3 has it
    assert tokenizer_checksum(actor) == identity != without
    PreTrainedTokenizerFast.from_pretrained(actor).save_pretrained(actor)
    assert (actor / "chat_template.jinja").is_file()
    assert tokenizer_checksum(actor) == identity
    several = [{"name": "default", "template": template}, {"name": "tool_use", "template": "tools"}]
    (actor / "chat_template.jinja").unlink()
    edit_json(actor / "tokenizer_config.json", chat_template=several)
    assert tokenizer_checksum(actor) == identity  # of which the default alone is asked for
    PreTrainedTokenizerFast.from_pretrained(actor).save_pretrained(actor)
    assert (actor / "additional_chat_templates" / "tool_use.jinja").is_file()
    assert tokenizer_checksum(actor) == identity


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of PEFT
@pytest.mark.parametrize(("asked", "named"), [
    ({"target_modules": ["lm_head"]}, "lm_head"),
    ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
    ({"target_modules": ["embed_tokens"]}, "embed_tokens"),
    ({"target_modules": ".*(lm_head|q_proj)"}, "lm_head"),
    ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "lm_head"),
    ({"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}, "embed_tokens"),
    ({"target_modules": ["q_proj"], "trainable_token_indices": [3, 4]}, "embed_tokens"),
])  # fmt: skip
def test_an_adapter_of_embeddings_or_output_is_not_trained(config, tmp_path, asked, named):
    expected = f"between the embeddings and the output, got one of .*{named}"
    if set(asked) == {"target_modules"}:
        lora = replace(LORA, **asked)
        with pytest.raises(ConfigError, match=f"lora.target_modules: .*{expected}"):
            load_actor(replace(config, lora=lora), trainable=True)
    of_peft(config, tmp_path, **asked)
    with pytest.raises(ConfigError, match=f"{tmp_path}: .*{expected}"):
        load_actor(replace(config, adapter=str(tmp_path)))


@pytest.mark.parametrize("names", [["no_such_layer"], "no_such_layer", ".*[", []])
def test_an_adapter_of_no_layer_is_one_line(config, names):
    with pytest.raises(ConfigError, match="lora.target_modules: "):
        load_actor(replace(config, lora=replace(LORA, target_modules=names)), trainable=True)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of PEFT
@pytest.mark.parametrize("asked", [
    {"target_modules": ["q_proj", "v_proj"]}, {"target_modules": ["q_proj"], "use_dora": True},
    {"target_modules": "all-linear", "use_rslora": True},
    {"target_modules": ["q_proj"], "bias": "all"},
    {"target_modules": ["q_proj"], "modules_to_save": ["o_proj"]},
])  # fmt: skip
def test_an_adapter_that_peft_saved_answers_as_it_did_there(config, tmp_path, caplog, asked):
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        trained_there = of_peft(config, tmp_path, **asked)(input_ids=ids).logits
        model, _ = load_actor(replace(config, adapter=str(tmp_path)))
        assert torch.equal(model(input_ids=ids).logits, trained_there)
        assert f"taken to belong to {config.model}" in caplog.text
        together = adapters.merged(model)(input_ids=ids).logits.log_softmax(-1)
    there = trained_there.log_softmax(-1)
    assert (there.exp() * (there - together)).sum(-1).max() < 1e-5


def of_peft(config, folder, **asked):
    """A model with an adapter that PEFT alone made and saved, without a word on its base."""
    model = AutoModelForCausalLM.from_pretrained(config.model)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's own
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **asked))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.05 * torch.randn_like(parameter)
        model.save_pretrained(folder)
    return model.eval()


@pytest.mark.parametrize(("part", "instead"), [
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAAAA"}),
    ("decoder", {"type": "Strip", "content": "a", "start": 9, "stop": 9}),
    ("decoder", {"type": "Nonsense"}),
    ("post_processor", {"type": "TemplateProcessing", "special_tokens": 3}),
    ("model", {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}),
    ("model", 3),
])  # fmt: skip
def test_a_tokenizer_that_panics_is_one_line_or_harmless(actor, part, instead):
    edit_json(actor / "tokenizer.json", **{part: instead})
    try:
        load_actor(ActorConfig(model=str(actor)))
    except DataError as error:
        assert str(actor) in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("number", [-1, -12, 10**6])
def test_a_number_of_layers_that_no_model_has_is_refused(actor, number):
    edit_json(actor / "config.json", num_hidden_layers=number)
    refused(actor, "num_hidden_layers: expected 0 to")


def test_a_package_that_a_model_needs_and_is_missing_is_one_line(actor, monkeypatch):
    def missing(*_, **__):
        raise ImportError("attention of\n a hub")

    monkeypatch.setattr("lactchain.models.loading.AutoConfig.from_pretrained", missing)
    with pytest.raises(ConfigError, match=r"a package that is not installed \(attention of a"):
        load_actor(ActorConfig(model=str(actor)))
