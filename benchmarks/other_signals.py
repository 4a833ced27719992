"""Numbers for the states of a world by other means than a critic: rows of `critic_signals.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from lactchain.config.settings import CriticConfig, GuidedActorConfig
from lactchain.environments.language import LanguageEnv
from lactchain.models.actor import LanguageActor
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import load_tokenizer
from lactchain.trainers.closed_form import NUM_FOLDS, RidgeFolds
from lactchain.trainers.critic import EpisodeTable
from lactchain.types import Trajectory

WIDTHS = 0.75
"""σ of HL-Gauss in widths of a bin (Farebrother et al. 2024)."""
QUESTION = """A player in a game is about to act. This is what it reads:

{text}

How near is it to its goal? Answer with one digit, from 0 (hopeless) to 9 (it is there)."""


def hl_gauss(
    critic: EmbeddingCritic, episodes: Sequence[Trajectory], texts: Sequence[str], bins: int
) -> list[float]:
    """Values (B,) of a linear head on a critic's features that learns in which bin a return falls.

    Each is spread by a normal distribution (HL-Gauss: Imani and White 2018). It sees all episodes,
    and learns the critic's own targets.
    """
    table = EpisodeTable(episodes, critic)
    known, asked = _features(critic, table.inputs), _features(critic, _rows(critic, texts))
    returns = _targets(table, known, critic)
    low, high = returns.min().item(), returns.max().item()
    room = 3 * WIDTHS * (high - low) / bins  # else the ends would be pulled to the middle
    edges = torch.linspace(low - room, high + room, bins + 1, dtype=torch.double)
    below = torch.special.ndtr((edges - returns[:, None]) / (WIDTHS * (edges[1] - edges[0])))
    shares = below.diff(dim=1) / (below[:, -1:] - below[:, :1])
    targets = torch.zeros(len(known), bins, dtype=torch.double)
    targets.index_add_(0, table.row_inputs, shares)
    mean, scale = known.mean(dim=0), known.std(dim=0).clamp_min(1e-6)
    layer = torch.nn.Linear(known.shape[1], bins, dtype=torch.double)
    torch.nn.init.zeros_(layer.weight), torch.nn.init.zeros_(layer.bias)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        log_probs = F.log_softmax(layer((known - mean) / scale), dim=1)
        found = 1e-4 * layer.weight.square().sum() - (targets * log_probs).sum() / targets.sum()
        found.backward()
        return found

    optimiser.step(loss)
    return (layer((asked - mean) / scale).softmax(dim=1) @ (edges[:-1] + edges[1:]) / 2).tolist()


def of_halves(
    critic: EmbeddingCritic, episodes: Sequence[Trajectory], texts: Sequence[str]
) -> np.ndarray:
    """Values (2, B) of two heads that share no episode, on a critic's encoder, which saw them all.

    What is bootstrapped is the critic's own value.
    """
    asked, found = _features(critic, _rows(critic, texts)), []
    for half in (episodes[::2], episodes[1::2]):
        table = EpisodeTable(half, critic)
        known = _features(critic, table.inputs)
        targets = _targets(table, known, critic)
        folds = RidgeFolds(known, table.row_inputs, table.row_episodes % NUM_FOLDS)
        found.append(folds.solve(targets).values(asked).numpy())
    return np.stack(found)


def likeness(encoder: str, texts: Sequence[str], best: Sequence[int]) -> list[float]:
    """Cosine (B,) of texts and of the mean of the `best` ones, those of states next to the goal."""
    critic = EmbeddingCritic.from_config(CriticConfig(encoder, max_length=256))
    read = F.normalize(_features(critic, _rows(critic, texts)))
    return F.cosine_similarity(read, read[best].mean(dim=0)[None]).tolist()


def prompted(model: str, texts: Sequence[str]) -> list[float]:
    """The digit (B,) that a language model expects to answer, asked how near the goal is."""
    tokenizer = load_tokenizer(Path(model), padding_side="left", chat=True)
    reader = AutoModelForCausalLM.from_pretrained(model)
    digits = [tokenizer.encode(str(n), add_special_tokens=False)[-1] for n in range(10)]
    found: list[float] = []
    for i in range(0, len(texts), 32):
        asked = [[{"role": "user", "content": QUESTION.format(text=t)}] for t in texts[i : i + 32]]
        rows = tokenizer.apply_chat_template(
            asked, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            shares = reader(**rows).logits[:, -1, digits].float().softmax(dim=1)
        found += (shares @ torch.arange(10.0)).tolist()
    return found


def of_tokens(values: Path, actor: Mapping[str, Any], env: LanguageEnv) -> list[float]:
    """V of all states, as MC or ILQL has it before the first token of an answer."""
    guided = GuidedActorConfig(**actor, values=str(values))
    ranking = LanguageActor.from_config(replace(guided, decoding="scored"), env.grammar).ranking
    return ranking.state_values(plain(env)).tolist()


def plain(env: LanguageEnv) -> list[str]:
    """What the states of a world read like at the beginning of an episode."""
    return [env.texts(state)[0] for state in env.view_states()]


def _targets(table: EpisodeTable, features: Tensor, critic: EmbeddingCritic) -> Tensor:
    """A critic's λ-returns (N,) by its own values, which have bounds where no text was answered."""
    head = critic.base.score.weight[0].detach().double() * critic.value_scale
    returns = table.targets(torch.zeros(len(features)))
    values = (critic.value_offset + features @ head).clamp(returns.min(), returns.max())
    return table.targets(values, critic.settings.trace)


def _rows(critic: EmbeddingCritic, texts: Sequence[str]) -> list[list[int]]:
    return critic.tokenize(critic.texts(texts))


@torch.inference_mode()
def _features(critic: EmbeddingCritic, rows: Sequence[Sequence[int]]) -> Tensor:
    batches = [critic.collate(rows[i : i + 256]) for i in range(0, len(rows), 256)]
    return torch.cat([critic(**batch, as_features=True) for batch in batches]).double()
