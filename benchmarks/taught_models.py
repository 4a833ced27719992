"""What stands in for the knowledge of pretrained models: where things are, and how one answers.

A random model of small width would spend most of a rehearsal on what Mistral-7B and
SFR-Embedding-Mistral bring along. So the stand-ins are taught with all their weights in float32: to
tell where the goal lies, behind the last token of a text, and the actor to answer with chains of
moves, until it begins to find the way. Then they are written as a hub would hold them.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from measuring import ROOT
from random_models import build_actor, build_encoder
from torch import Tensor
from torch.nn import functional
from tqdm import trange
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from lactchain.config.settings import EnvironmentConfig
from lactchain.environments.language import make_language_env
from lactchain.functional.tokens import pad
from lactchain.models.loading import load_tokenizer
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.models.runtime import quiet
from lactchain.stages.train_bc import BehaviorConfig, behavior_examples

BEHAVIOR = BehaviorConfig(num_chains=20_000, competent_fraction=1.0)
BATCH_SIZE, LEARNING_RATE = 32, 2e-3
ACTOR_UPDATES, ENCODER_UPDATES, WHOLE_EVERY = 220, 400, 8
"""With 300 updates the actor finishes from nearly every state, and rounds have little to add.
Each eighth is on the whole vocabulary, which takes most of the time and teaches only that no other
token is ever said; the others are on the few tokens that completions hold."""

FACING = {"up": (0, -1), "right": (1, 0), "down": (0, 1), "left": (-1, 0)}
NUMBERS = re.compile(r"\((\d), (\d)\)")

Loss = Callable[[Tensor, Sequence[int], int], Tensor]


def build_taught_actor(folder: Path, max_shard_size: int, **shape: int) -> None:
    """Writes an actor that knows the form of a completion, and something of the grid world."""
    build_actor(folder, **shape, dtype=torch.float32)
    tokenizer = load_tokenizer(folder, padding_side="left", chat=True)
    grammar = make_language_env(EnvironmentConfig()).grammar
    template = PromptTemplate(tokenizer, "founding", grammar)
    texts, actions = zip(*_examples(), strict=True)
    completions = encode_completions(actions, tokenizer)
    model = AutoModelForCausalLM.from_pretrained(folder)
    used = torch.tensor(sorted({token for completion in completions for token in completion}))

    def answering(hidden: Tensor, rows: Sequence[int], update: int) -> Tensor:
        """The mean negative log-likelihood of the completions' tokens."""
        columns = used if update % WHOLE_EVERY else torch.arange(model.config.vocab_size)
        said = [completions[row] for row in rows]
        states = [h[-len(tokens) - 1 : -1] for h, tokens in zip(hidden, said, strict=True)]
        tokens = torch.tensor([token for tokens in said for token in tokens])
        logits = functional.linear(torch.cat(states), model.lm_head.weight[columns])
        return functional.cross_entropy(logits, torch.searchsorted(columns, tokens))

    prompts = template.encode_batch(texts)
    # Known in the middle layer, the goal can be used by those above, and by the completion's
    # tokens.
    middle = model.config.num_hidden_layers // 2
    _teach(model, texts, prompts, completions, answering, middle, ACTOR_UPDATES)
    _write(model, folder, max_shard_size)


def build_taught_encoder(folder: Path, max_shard_size: int, **shape: int) -> None:
    """Writes an encoder whose embeddings tell where the goal lies."""
    build_encoder(folder, **shape, dtype=torch.float32)
    tokenizer = load_tokenizer(folder, padding_side="left")
    preset = ROOT / "configs/train_critic/gridworld_mistral7b.yaml"
    task = yaml.safe_load(preset.read_text("utf-8"))["critic"]["instruction"]
    texts, _ = zip(*_examples(), strict=True)
    ids = tokenizer([f"Instruct: {task}\nQuery: {text}" for text in texts])["input_ids"]
    model = AutoModel.from_pretrained(folder)
    _teach(model, texts, ids, [[]] * len(ids), lambda *_: torch.zeros(()), -1, ENCODER_UPDATES)
    _write(model, folder, max_shard_size)


def _examples() -> list:
    """Observations, and scripted chains."""
    return behavior_examples(make_language_env(EnvironmentConfig()), BEHAVIOR, seed=0)


def _goal(text: str) -> list[float]:
    """How far to the right and below the goal is, on the map and as the agent sees it."""
    (goal_x, goal_y), (x, y) = (map(int, pair) for pair in NUMBERS.findall(text))
    right, down = goal_x - x, goal_y - y
    ahead_x, ahead_y = FACING[re.search(r"facing (\w+)", text)[1]]
    return [right, down, right * ahead_x + down * ahead_y, down * ahead_x - right * ahead_y]


def _teach(
    model: PreTrainedModel,
    texts: Sequence[str],
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    answering: Loss,
    telling_layer: int,
    num_updates: int,
) -> None:
    """Trains all weights to tell the goal behind a prompt, in one layer, and to answer it."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    goals = torch.tensor([_goal(text) for text in texts])
    lengths = np.array([*map(len, completions)])
    telling = torch.nn.Linear(model.config.hidden_size, goals.shape[1])
    optimizer = torch.optim.AdamW([*model.parameters(), *telling.parameters()], LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, num_updates)
    losses = []
    for update in (bar := trange(num_updates, desc=type(model).__name__)):
        rows = rng.integers(len(texts), size=BATCH_SIZE)
        ids = [prompts[row] + completions[row] for row in rows]
        mask = pad([[1] * len(row) for row in ids], 0, "left")
        read = pad(ids, 0, "left")
        output = model.base_model(read, attention_mask=mask, output_hidden_states=True)
        hidden, told = output.last_hidden_state, output.hidden_states[telling_layer]
        asked = torch.stack([h[-1 - lengths[row]] for h, row in zip(told, rows, strict=True)])
        where = functional.mse_loss(telling(asked), goals[rows])
        loss = where + answering(hidden, rows, update)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(where.item())
        answers = (loss - where).item()
        bar.set_postfix_str(f"goal {np.mean(losses[-50:]):.2f}, completions {answers:.3f}")


def _write(model: PreTrainedModel, folder: Path, max_shard_size: int) -> None:
    """Writes the weights in bfloat16 and in shards, in the place of those that were there."""
    for file in folder.glob("model*"):
        file.unlink()
    with quiet():
        model.to(torch.bfloat16).save_pretrained(folder, max_shard_size=max_shard_size)
