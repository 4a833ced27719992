"""Encoders of other kinds under the critic: what they read, what is pooled, and what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import random_models
import torch
import transformers
from script_setups import GRID, config_of, run_here
from sentencepiece import SentencePieceProcessor
from test_loading import edit_json
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from training_setups import STATES, TRAINING, chain_of
from trajectories import trajectory

from lactchain import CriticConfig, EmbeddingCritic, LoraSettings, Run, TrainingConfig, Trajectory
from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import sampled_states
from lactchain.data.preferences import make_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.errors import ConfigError, DataError
from lactchain.models.loading import load_encoder
from lactchain.models.runtime import quiet
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.critic import CriticTrainer, EpisodeTable
from lactchain.types import FunctionPolicy

BOS, EOS, CLS, SEP = range(4)
LORA = LoraSettings(r=8)
TASK = "Given a state, find how soon the goal is reached"


@pytest.fixture(scope="module")
def sfr(tiny, tmp_path_factory):
    """The tiny encoder with a tokenizer set as that of SFR-Embedding-Mistral.

    It declares an end of sequence that its post-processor does not add, and pads with the same.
    """
    folder = tmp_path_factory.mktemp("sfr") / "encoder"
    shutil.copytree(tiny / "encoder", folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, pad_token="</s>")
    tokenizer.add_bos_token = True
    tokenizer.save_pretrained(folder)
    edit_json(folder / "tokenizer_config.json", add_eos_token=True)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A BERT of two layers with word pieces of its own, as `BertModel` saves it."""
    return build_bert(tmp_path_factory.mktemp("bert"), transformers.BertModel)


def build_bert(folder: Path, model_class: type) -> Path:
    words = sorted({word for state in STATES for word in state.split()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    shape = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, initializer_range=0.2,
        hidden_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    with quiet():
        model_class(shape).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    return folder


def bert_config(folder: Path, **changes) -> CriticConfig:
    return CriticConfig(str(folder), pooling="mean", max_length=64, gamma=0.9, **changes)


def decision(text: str, chain: str, reward: float) -> Trajectory:
    """An episode of one chain."""
    infos = ({}, {"rewards": [reward], "executed": ["turn left"]})
    return trajectory((text, text), (chain,), (reward,), infos)


def trained(critic: EmbeddingCritic, run_dir: Path, data: list[Trajectory], steps: int) -> list:
    """Losses of a training of so many updates."""
    extra = {"logging_steps": 1}
    settings = TrainingConfig(max_steps=steps, batch_size=16, learning_rate=1e-2, extra=extra)
    table = EpisodeTable(data, critic)
    args = training_arguments(settings, run_dir / "checkpoints", 0)
    with Run.open(run_dir, TRAINING) as run:
        trainer = CriticTrainer(critic, args, table, run=run)
        train(trainer)
    return [record["loss"] for record in trainer.state.log_history if "loss" in record]


def test_an_instruction_stands_before_each_text_and_is_part_of_what_values_mean(tiny, tmp_path):
    """As SFR-Embedding-Mistral has it."""
    config = CriticConfig(str(tiny / "encoder"), instruction=TASK)
    critic = EmbeddingCritic.from_config(config)
    assert critic.texts(["2 3 up"]) == [f"Instruct: {TASK}\nQuery: 2 3 up"]
    of_chains = EmbeddingCritic.from_config(replace(config, mode="action_value"))
    assert of_chains.texts(["2 3 up"], ["[]"]) == [f"Instruct: {TASK}\nQuery: 2 3 up\n[]"]
    critic.save(tmp_path)
    assert EmbeddingCritic.load(tmp_path).settings.instruction == TASK
    with pytest.raises(ConfigError, match=r"critic.instruction: expected 'Given a state"):
        EmbeddingCritic.from_config(CriticConfig(config.model, checkpoint=str(tmp_path)))


@pytest.mark.parametrize(("told", "read"), [
    ({"prompts": {"query": "query: ", "document": "d: "}}, "query: 2"),
    ({"prompts": {"query": "q: ", "s": "{s} "}, "default_prompt_name": "s"}, "{s} 2"),
    ({"prompts": {"query": "", "document": "d: "}, "default_prompt_name": None}, "2"),
    ({"prompts": {"web_query": "w: "}}, "2"),
    ({"prompts": None}, "2"),
    ({"prompts": {"query": 5}}, None),
    ({"prompts": ["query"]}, None),
])  # fmt: skip
def test_an_encoder_reads_what_its_folder_puts_before_a_query(tiny, tmp_path, told, read):
    """As sentence-transformers does; the critic keeps it, and an instruction that is set counts."""
    encoder = tmp_path / "encoder"
    shutil.copytree(tiny / "encoder", encoder)
    (encoder / "config_sentence_transformers.json").write_text(json.dumps(told))
    config = CriticConfig(str(encoder))
    if read is None:
        with pytest.raises(DataError, match=r"transformers.json: prompts: expected texts by name"):
            EmbeddingCritic.from_config(config)
        return
    critic = EmbeddingCritic.from_config(config)
    critic.save(tmp_path / "critic")
    resumed = EmbeddingCritic.from_config(replace(config, checkpoint=str(tmp_path / "critic")))
    for found in (critic, EmbeddingCritic.load(tmp_path / "critic"), resumed):
        assert found.texts(["2"]) == [read]
    own = EmbeddingCritic.from_config(replace(config, instruction="a {text} b"))
    assert own.texts(["2"]) == ["a 2 b"]


def test_a_text_ends_in_the_token_that_sfr_pools(tmp_path):
    random_models.build_encoder(tmp_path, hidden_size=16, num_layers=1)  # the real vocabulary
    critic = EmbeddingCritic.from_config(CriticConfig(str(tmp_path), instruction=TASK))
    pieces = SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    for text in critic.texts(["You are at (2, 3).", "</s>", ""]):
        assert critic.tokenize([text]) == [[1, *pieces.encode(text), 2]]


def test_what_is_too_long_keeps_its_end_of_sequence(sfr, tiny):
    whole = EmbeddingCritic.from_config(CriticConfig(str(sfr))).tokenize(["2 3 up 1 0"])[0]
    critic = EmbeddingCritic.from_config(CriticConfig(str(sfr), max_length=4))
    assert (whole[0], whole[-1], whole.count(EOS)) == (BOS, EOS, 1)
    assert critic.tokenize(["2 3 up 1 0"]) == [[BOS, *whole[-3:]]]
    plain = EmbeddingCritic.from_config(CriticConfig(str(tiny / "encoder")))  # declares no end
    assert plain.tokenizer.eos_token_id not in plain.tokenize([STATES[0]])[0]


def test_the_end_of_sequence_is_read_though_padding_is_the_same_token(sfr):
    critic = EmbeddingCritic.from_config(CriticConfig(str(sfr)))
    rows = critic.tokenize(["2", "2 3 up"])
    batch = critic.collate(rows)
    assert batch["input_ids"][0].tolist() == [*rows[0]] + [EOS] * (len(rows[1]) - 3)
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, len(rows[1])]
    torch.nn.init.normal_(critic.trunk.score.weight)
    alone = [critic.values([text])[0] for text in ("2", "2 3 up")]
    np.testing.assert_allclose(critic.values(["2", "2 3 up"]), alone, atol=1e-5)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
def test_a_saved_critic_ends_its_texts_alike(sfr, tmp_path, lora):
    critic = EmbeddingCritic.from_config(CriticConfig(str(sfr), lora=lora), trainable=True)
    with torch.no_grad():
        for weight in critic.parameters():
            weight.add_(0.1 * weight.requires_grad)
    critic.save(tmp_path)
    loaded = EmbeddingCritic.load(tmp_path)
    assert loaded.tokenize(["a text"]) == critic.tokenize(["a text"])
    assert loaded.tokenize(["a text"])[0].count(EOS) == 1
    again = EmbeddingCritic.from_config(loaded.settings, trainable=True)
    assert again.tokenize(["a text"]) == critic.tokenize(["a text"])


def test_a_bert_is_read_as_its_own_model_reads_and_averaged_over_real_tokens(bert):
    critic = EmbeddingCritic.from_config(bert_config(bert))
    torch.nn.init.normal_(critic.trunk.score.weight)
    head = critic.trunk.score.weight[0]
    own = transformers.AutoModel.from_pretrained(bert).eval()
    texts = [STATES[0], f"{STATES[5]} {STATES[7]}"]
    expected = []
    for text in texts:
        inputs = critic.tokenizer(text, return_tensors="pt")
        assert inputs["input_ids"][0, [0, -1]].tolist() == [CLS, SEP]
        with torch.no_grad():
            expected.append(own(**inputs).last_hidden_state[0].mean(dim=0) @ head)
    np.testing.assert_allclose(critic.values(texts), torch.stack(expected).detach(), atol=1e-6)


@pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])
def test_a_bert_learns_and_comes_back_bit_for_bit(bert, tmp_path, lora):
    torch.manual_seed(0)
    config = bert_config(bert, lora=lora)
    critic = EmbeddingCritic.from_config(config, trainable=True, value_scale=10.0)
    sums = [float(state[0]) + float(state[2]) for state in STATES]
    played = [decision(text, "[]", total) for text, total in zip(STATES, sums, strict=True)]
    losses = trained(critic, tmp_path / "run", played, steps=60)
    assert np.mean(losses[-5:]) < 0.2 * losses[0]
    assert np.mean((critic.values(STATES) - sums) ** 2) < 0.5 * np.var(sums)
    critic.save(tmp_path / "critic")
    loaded = EmbeddingCritic.load(tmp_path / "critic")
    assert np.array_equal(loaded.values(STATES), critic.values(STATES))
    fresh = EmbeddingCritic.from_config(bert_config(bert, lora=lora), trainable=True)
    fresh.load_weights(tmp_path / "critic")
    assert np.array_equal(fresh.values(STATES), critic.values(STATES))


def test_all_that_is_trained_of_a_bert_gets_a_gradient(bert):
    for lora in (None, LORA):  # what gets none, such as BERT's pooler, would stop DDP
        critic = EmbeddingCritic.from_config(bert_config(bert, lora=lora), trainable=True)
        critic(**critic.collate(critic.tokenize(STATES[:4]))).sum().backward()
        assert all(w.grad is not None for w in critic.parameters() if w.requires_grad)
    assert sum("lora_A" in name for name, _ in critic.named_parameters()) == 6 * 2


def test_a_bert_of_a_masked_language_model_has_the_same_trunk(bert, tmp_path):
    folders = bert, build_bert(tmp_path, transformers.BertForMaskedLM)
    trunks = (load_encoder(bert_config(folder))[0].base_model for folder in folders)
    bare, of_language_model = (trunk.state_dict() for trunk in trunks)
    saved = transformers.BertForMaskedLM.from_pretrained(tmp_path).bert.state_dict()
    assert of_language_model.keys() == bare.keys() == saved.keys()
    assert all(torch.equal(of_language_model[name], saved[name]) for name in saved)


def test_an_encoder_decoder_is_refused_by_name(bert, tmp_path):
    build_bert(tmp_path, transformers.BertModel)
    transformers.T5Config(vocab_size=64).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"critic.model: .*{tmp_path}, a t5, which is both"):
        EmbeddingCritic.from_config(bert_config(tmp_path))


@pytest.mark.parametrize("length", [2, 65])
def test_texts_too_long_for_an_encoder_are_refused_before_play(length, bert, tiny, run_dir):
    critic = CriticConfig(str(bert), max_length=length)
    with pytest.raises(ConfigError, match=r"critic.max_length: expected 3 to 64 .*, got"):
        run_here("train_critic", config_of("train_critic", tiny, run_dir, critic=critic))
    assert not (run_dir / "trajectories").exists()


def test_a_critic_of_chains_learns_which_completion_is_better_and_ranks_pairs(tiny, tmp_path):
    chains = tuple(chain_of(length) for length in (1, 2, 3))
    rollouts = Rollouts(GRID)
    states = sampled_states(rollouts.env, 24, seed=0)
    texts, worth = rollouts.observe(states[:16]), [*zip(chains, (0.0, 1.0, 2.0), strict=True)]
    played = [decision(text, *rewarded) for text in texts for rewarded in worth]
    torch.manual_seed(0)
    config = CriticConfig(str(tiny / "encoder"), mode="action_value")
    critic = EmbeddingCritic.from_config(config, trainable=True)
    losses = trained(critic, tmp_path / "run", played, steps=40)
    assert losses[-1] < 0.1 * losses[0]
    policy = FunctionPolicy(lambda _, seed: chains[seed % 3], draws=True)
    found = sample_candidates(policy, rollouts, states[16:], 12, 0, critic)
    pairs, _ = make_pairs(found, min_margin=0.1)  # in states it has not seen
    assert {(pair.chosen, pair.rejected) for pair in pairs} == {(chains[2], chains[0])}
