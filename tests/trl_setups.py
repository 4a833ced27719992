"""Tiny models: a Mistral that has learnt to play a 2x2 grid, and a Qwen 3 that has not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
import trl
from script_setups import SHAPE
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import MistralForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from lactchain import EnvironmentConfig, OptimalChains, RandomChains, make_language_env
from lactchain.data.base_models import prepare_tiny_actor
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate

GRID = EnvironmentConfig(
    kwargs={"size": 2}, template="{x} {y} {orientation} {goal_x} {goal_y}{feedback}",
    max_chain_length=3, max_chains=3, invalid_penalty=-0.5, chain_cost=0.125,
)  # fmt: skip
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"


def lessons(env, count=128):
    """States and completions; every other eight of them are the best."""
    best, drawn = OptimalChains(env), RandomChains(env.grammar)
    states = env.start_states()
    for number in range(count):
        text, _ = env.reset(options={"state": states[number % len(states)]})
        yield text, (best if number % 16 < 8 else drawn).complete(text, number)


def clone(model, rows, num_steps, batch_size=16, learning_rate=3e-3):
    """Trains on the second half of each row: (tokens given, tokens said)."""
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate)
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_steps):
        chosen = torch.randint(len(rows), (batch_size,), generator=generator).tolist()
        width = max(len(given) + len(said) for given, said in (rows[n] for n in chosen))
        ids = torch.zeros(batch_size, width, dtype=torch.long)
        labels = torch.full((batch_size, width), -100)
        for row, (given, said) in enumerate(rows[n] for n in chosen):
            ids[row, : len(given) + len(said)] = torch.tensor([*given, *said])
            labels[row, len(given) : len(given) + len(said)] = torch.tensor(said)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def standing_in(mistral, longest=64):
    """What rollouts ask of TRL's trainer."""
    model, tokenizer = mistral
    return SimpleNamespace(
        model=model, processing_class=tokenizer, max_completion_length=longest, temperature=1.0,
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
    )  # fmt: skip


def cloned_mistral(folder, num_steps=60):
    """Model and tokenizer of a tiny actor that says chains, good ones and random ones."""
    prepare_tiny_actor(folder, replace(SHAPE, hidden_size=32), GRID)
    model = MistralForCausalLM.from_pretrained(folder)
    tokenizer = load_tokenizer(Path(folder), padding_side="left")
    template, end = PromptTemplate(tokenizer), [tokenizer.eos_token_id]
    rows = [
        (template.encode(text), tokenizer(said, add_special_tokens=False)["input_ids"] + end)
        for text, said in lessons(make_language_env(GRID))
    ]
    clone(model.train(), rows, num_steps)
    return model, tokenizer


def qwen_tokenizer(corpus):
    """Byte-level BPE with Qwen 3's special tokens and template."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE.read_text(),
        padding_side="left",
    )
    fast.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    return fast


def tiny_qwen():
    """Model and tokenizer of a tiny Qwen 3, which has not learnt anything."""
    env = make_language_env(GRID)
    tokenizer = qwen_tokenizer(env.reset(seed=n)[0] for n in range(64))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                head_dim=16, intermediate_size=64, vocab_size=len(tokenizer),
                max_position_embeddings=1024, tie_word_embeddings=True,
                eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
            )
        )  # fmt: skip
    return model, tokenizer
