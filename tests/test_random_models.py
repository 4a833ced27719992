"""Random checkpoints are what the published ones are, but for their weights."""

from pathlib import Path

import pytest
import random_models
import torch
from sentencepiece import SentencePieceProcessor
from transformers import AutoModel, AutoModelForCausalLM

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.models.generation.automaton import build_automaton
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate
from lactchain.models.runtime import quiet
from lactchain.models.weights import check_weights

TEXTS = ("hello world", "At (2, 3).\n goal", '["turn left", "move forward"]', "[1]", "é漢🙂")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    actor, encoder = (tmp_path_factory.mktemp(name) for name in ("actor", "encoder"))
    size = {"hidden_size": 64, "num_layers": 2, "max_shard_size": 3_000_000}
    random_models.build_actor(actor, **size)
    random_models.build_encoder(encoder, **size)
    return actor, encoder


def test_weights_load_from_their_shards_in_their_dtype(folders):
    for folder, auto_class in zip(folders, (AutoModelForCausalLM, AutoModel), strict=True):
        assert len(check_weights(folder)) > 1
        with quiet():
            model, report = auto_class.from_pretrained(
                folder, dtype="auto", output_loading_info=True
            )
        assert not any(report.values())
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        assert model(torch.arange(9)[None])[0].isfinite().all()


def test_vocabularies_are_those_that_sentencepiece_reads(folders):
    for folder, size in zip(folders, (32768, 32000), strict=True):
        tokenizer = load_tokenizer(folder, padding_side="left")
        pieces = SentencePieceProcessor(str(folder / "tokenizer.model"))
        assert len(tokenizer) == pieces.vocab_size() == size
        for text in TEXTS:
            assert tokenizer(text)["input_ids"] == [1, *pieces.encode(text)]


def test_prompts_are_those_of_the_published_chat_template(folders):
    tokenizer = load_tokenizer(folders[0], padding_side="left", chat=True)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<s>[INST] S\n\nU[/INST]"
    assert not (folders[0] / "chat_template.jinja").exists()
    grammar = make_language_env(EnvironmentConfig()).grammar
    template = PromptTemplate.for_grammar(tokenizer, "founding", grammar)
    prompt = template.encode("2 3 up 1 0")
    assert prompt.count(1) == 1 and prompt[-1] == tokenizer.convert_tokens_to_ids("[/INST]")
    assert build_automaton(grammar, tokenizer) is not None
