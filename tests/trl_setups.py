"""Tiny models that have learnt to play a 2x2 grid: a Mistral by chains, a Qwen 3 by tool calls."""

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
from lactchain_extras.trl import OVER, environment

GRID = EnvironmentConfig(
    kwargs={"size": 2}, template="{x} {y} {orientation} {goal_x} {goal_y}{feedback}",
    max_chain_length=3, max_chains=3, invalid_penalty=-0.5, chain_cost=0.125,
)  # fmt: skip
TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
CALL = '{"name": "play", "arguments": {"chain": '
RESPONSE = (
    "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)
NO_THOUGHT = "<think>\n\n</think>\n\n"


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


def qwen_tokenizer(corpus, phrases):
    """Byte-level BPE with Qwen 3's special tokens and template; constant phrases are one token."""
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
    fast.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", *phrases])
    return fast


def conversations(env, first):
    """Episodes as texts: what is given, what is said to it, turn by turn."""
    best, drawn = OptimalChains(env), RandomChains(env.grammar)
    for number, state in enumerate(env.start_states() * 2):
        text, _ = env.reset(options={"state": state})
        given, over = first(text), False
        for turn in range(env.max_chains):
            policy = best if (number + turn) % 2 else drawn
            chain = policy.complete(text, 9 * number + turn)
            call = f"{NO_THOUGHT}<tool_call>\n{CALL}{chain}}}}}\n</tool_call><|im_end|>"
            yield given, call
            text, _, terminated, truncated, _ = env.step(chain)
            over = terminated or truncated
            told = f"{text}\n{OVER}" if over else text
            given += call + RESPONSE.format(told)
            if over:
                yield given, f"{NO_THOUGHT}done<|im_end|>"
                break


def cloned_qwen(num_steps=150):
    """Model and tokenizer of a tiny Qwen 3 that calls the tool with chains."""
    env = make_language_env(GRID)
    template = TEMPLATE.read_text()
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), chat_template=template)

    def first(text):
        messages, tools = [{"role": "user", "content": text}], [environment(GRID)().play]
        options = {"add_generation_prompt": True, "tokenize": False}
        return plain.apply_chat_template(messages, tools=tools, **options)

    rows = list(conversations(env, first))
    system = first("").split("<|im_start|>")[1].removesuffix("<|im_end|>\n")
    phrases = [system, CALL, OVER, env.view.bump_feedback, NO_THOUGHT]
    phrases += [f'"{name}"' for name in env.grammar.action_names]
    phrases += ["user\n<tool_response>\n", "\n</tool_response>"]
    tokenizer = qwen_tokenizer((env.reset(seed=n)[0] for n in range(64)), phrases)
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
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
    clone(model.train(), [(encode(given), encode(call)) for given, call in rows], num_steps)
    return model, tokenizer
