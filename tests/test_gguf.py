"""A GGUF file becomes a folder that computes and reads the same, or is refused in a line."""

import logging
from pathlib import Path

import pytest
import torch
from gguf_files import END, START, TEXTS, UNKNOWN, tiny_llama, tiny_tokenizer, write_gguf

from lactchain import ActorConfig, ConfigError, DataError, EnvironmentConfig, make_language_env
from lactchain.models.actor import LanguageActor
from lactchain.models.loading import load_actor, load_shape
from lactchain.models.weights import resolve_weights
from lactchain.storage.manifests import MANIFEST, read_manifest
from lactchain_extras.stages.prepare_weights import PrepareWeightsConfig, main
from lactchain_extras.weights.gguf import convert_gguf

TOKENIZER = tiny_tokenizer()
MODEL = tiny_llama(len(TOKENIZER))


@pytest.fixture
def file(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", MODEL, TOKENIZER)
    return tmp_path / "tiny.gguf"


def prepared(file: Path) -> Path:
    main(PrepareWeightsConfig(folder=str(file.parent / "weights"), gguf=[str(file)]))
    return file.parent / "weights" / file.stem


def logits(model) -> torch.Tensor:
    ids = torch.tensor([TOKENIZER(TEXTS[0])["input_ids"]])
    with torch.inference_mode():
        return model(ids).logits


def test_the_folder_computes_and_reads_as_the_model_that_the_file_was_made_of(file):
    folder = prepared(file)
    model, tokenizer = load_actor(ActorConfig(str(folder)))
    assert load_shape(folder).dtype == torch.float32
    assert torch.allclose(logits(model), logits(MODEL), atol=1e-5)
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == TOKENIZER(text)["input_ids"]
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (START, END, END)
    numbers = TOKENIZER.convert_tokens_to_ids([START, END, END])
    for config in (model.config, model.generation_config):
        assert [config.bos_token_id, config.eos_token_id, config.pad_token_id] == numbers


def test_weights_of_eight_bits_come_out_near_and_may_compute_in_sixteen(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", MODEL, TOKENIZER, quantised=True)
    folder = prepared(tmp_path / "tiny.gguf")
    model, _ = load_actor(ActorConfig(str(folder), dtype="float32"))
    away = (logits(model) - logits(MODEL)).norm() / logits(MODEL).norm()
    assert 1e-5 < away < 0.05
    assert read_manifest(folder / MANIFEST)["quantisation"] == "Q8_0, dequantised"
    assert load_shape(folder).dtype == torch.bfloat16


def test_an_answer_ends_where_the_chat_template_ends_a_turn(file):
    """Also where the file states the end of a text instead; the model says the end at once."""
    end = TOKENIZER.convert_tokens_to_ids(END)
    model = tiny_llama(len(TOKENIZER))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[:] = 0.01
        model.model.embed_tokens.weight[end] = 1.0
    write_gguf(file, model, TOKENIZER, eos=UNKNOWN)
    env = make_language_env(EnvironmentConfig())
    actor = LanguageActor.from_config(ActorConfig(str(prepared(file))), env.grammar)
    (answer,) = actor.act(["The goal is 2 to the right."], seeds=[0])
    assert (answer.token_ids, answer.text, answer.stop_reason) == ((end,), "", "stop")


def test_what_is_not_kept_is_said(file, caplog):
    caplog.set_level(logging.WARNING, "lactchain")
    write_gguf(file, MODEL, TOKENIZER, pre="smollm", chat_template=None)
    convert_gguf(file, file.with_name("folder"))
    assert "into words before tokens (`smollm`) is not known" in caplog.text
    assert "it has no chat template; put" in caplog.text


def test_another_file_of_the_same_name_is_refused(file):
    prepared(file)
    write_gguf(file, MODEL, TOKENIZER, quantised=True)
    with pytest.raises(ConfigError, match="tiny: was made from other settings: .*sha256"):
        prepared(file)


def test_what_cannot_be_read_whole_is_refused(file):
    content = file.read_bytes()
    cut_short = "tiny.gguf: damaged or cut short.*copy it again"
    for changed, words in (
        *((content[: int(share * len(content))], cut_short) for share in (0.001, 0.05, 0.5, 0.999)),
        (b"PK\3\4" + bytes(100), "tiny.gguf: expected a GGUF file, got another"),
        (None, "tiny.gguf: no such file"),
    ):
        file.unlink() if changed is None else file.write_bytes(changed)
        with pytest.raises(DataError, match=words):
            prepared(file)
    model = tiny_llama(len(TOKENIZER))
    del model.model.layers[1].mlp.up_proj  # as in the first of several files of a large model
    for words, parts, options in (
        ("cannot read.*nobodys", (MODEL, TOKENIZER), {"architecture": "nobodys"}),
        ("expected a GGUF file with its tokenizer, got none", (MODEL, None), {}),
        ("weights of every layer, 1 are missing.*up_proj", (model, TOKENIZER), {}),
    ):
        write_gguf(file, *parts, **options)
        with pytest.raises(DataError, match=words):
            prepared(file)


def test_without_the_package_the_line_says_how_to_install_it(file, monkeypatch):
    monkeypatch.setattr("lactchain_extras.weights.gguf.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'lactchain\[gguf\]'"):
        prepared(file)


@pytest.mark.parametrize("given", ["tiny.gguf", "."])
def test_a_gguf_as_a_model_names_the_command_that_converts_it(file, given, monkeypatch):
    monkeypatch.chdir(file.parent)
    with pytest.raises(DataError, match=r"tiny.gguf: expected a folder.*--gguf '\[tiny.gguf\]'"):
        resolve_weights(given)
