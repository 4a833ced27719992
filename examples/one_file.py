"""The whole idea in one file: a language model learns a grid world from its own sampled chains.

    python examples/one_file.py            # 4x4 grid: three minutes of one CPU core

A state is five words (where I am, which way I face, where the goal lies from here). The actor, a
tiny causal language model, answers with a *chain*, several actions and the word `end`. Then, round
by round:

    play     the actor plays episodes, chain after chain
    critic   another model learns what a state is worth: the mean of the returns that followed
    pairs    of some completions to one state, the best and the worst by advantage
    SimPO    makes the first of each pair likelier than the second (Meng et al. 2024)

The world and the losses come from the package. The package does the same for large models and other
worlds: with prompts in sentences, checkpoints, several processes, and far fewer wasted products.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from lactchain.functional.losses import regression_loss, simpo_loss
from lactchain.functional.tokens import masked_mean, token_logprobs
from lactchain.worlds.gridworld import GridWorld

GAMMA = 0.8  # a factor for each action: the goal in nine actions is still worth .13
CHAIN_COST = 0.02  # asks for few completions
NO_CHAIN = -1.0  # what a completion earns that is no chain
MOST_CHAINS = 16  # of an episode
NUM_CANDIDATES = 16  # completions to a state, of which a pair is made
MIN_MARGIN = 0.02  # advantages closer than this may be luck


# --- the world in words --------------------------------------------------------------------------


class World:
    """The grid as tables over all its states, and each state in words.

    Attributes:
        prompts: (S, 5) tokens of each state.
        starts: the states that an episode can begin in.
        distance: (S,) actions to the goal.
    """

    def __init__(self, size: int) -> None:
        self.tables = tables = GridWorld(size=size).tables
        numbers = [str(n) for n in range(-size + 1, size)]
        self.words = [*numbers, "up", "right", "down", "left", *tables.action_names, "end"]
        self.end = len(self.words) - 1
        self.actions = range(self.end - len(tables.action_names), self.end)
        x, y, facing, goal_x, goal_y = tables.observations.T
        zero = numbers.index("0")
        columns = [x + zero, y + zero, facing + len(numbers), goal_x - x + zero, goal_y - y + zero]
        self.prompts = torch.from_numpy(np.stack(columns, axis=1))
        self.starts = tables.start_states
        self.distance = self._distances()
        self.longest = int(self.distance.max())

    def _distances(self) -> np.ndarray:
        distance = np.where(self.tables.terminal, 0.0, np.inf)
        while True:
            nearer = np.minimum(distance, 1 + distance[self.tables.next_state].min(axis=1))
            if (nearer == distance).all():
                return distance.astype(int)
            distance = nearer

    def play(self, states: np.ndarray, chains: Tensor) -> tuple[np.ndarray, ...]:
        """Plays a completion (B, L) in each state (B,), up to its end or the goal.

        A completion that is empty, or has a word that is no action, is no chain: nothing moves.

        Returns:
            Rewards, discounts γ^k (0 where the goal was reached) and next states, each (B,).
        """
        words = chains.numpy()
        length = (words == self.end).argmax(axis=1)
        inside = np.arange(words.shape[1]) < length[:, None]
        moves = words - self.actions[0]
        legal = (moves >= 0) & (moves < len(self.actions))
        is_chain = (length > 0) & (legal | ~inside).all(axis=1)
        rewards = np.where(is_chain, 0.0, NO_CHAIN) - CHAIN_COST
        discounts, here = np.where(is_chain, 1.0, GAMMA), states.copy()
        for step in range(words.shape[1]):
            on = is_chain & inside[:, step] & ~self.tables.terminal[here]
            move = moves[on, step]
            rewards[on] += discounts[on] * self.tables.rewards[here[on], move]
            here[on] = self.tables.next_state[here[on], move]
            discounts[on] *= GAMMA
        return rewards, np.where(self.tables.terminal[here], 0.0, discounts), here

    def shortest(self, state: int) -> list[int]:
        """A shortest chain from a state, as tokens."""
        chain = []
        while self.distance[state]:
            following = self.tables.next_state[state]
            move = int(self.distance[following].argmin())
            chain.append(self.actions[move])
            state = following[move]
        return [*chain, self.end]


# --- the two models ------------------------------------------------------------------------------


def shape(world: World) -> LlamaConfig:
    """Of both models: two layers of 64 units."""
    return LlamaConfig(
        vocab_size=len(world.words), hidden_size=64, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, initializer_range=0.1,
        bos_token_id=None, eos_token_id=world.end, pad_token_id=world.end,
    )  # fmt: skip


class Critic(nn.Module):
    """Prompts (B, 5) → values (B,)."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.trunk, self.head = LlamaModel(shape(world)), nn.Linear(64, 1)

    def forward(self, prompts: Tensor) -> Tensor:
        """Reads the last word's hidden state."""
        return self.head(self.trunk(prompts).last_hidden_state[:, -1]).squeeze(-1)


@torch.inference_mode()
def answer(actor: LlamaForCausalLM, world: World, states: np.ndarray, greedy: bool) -> Tensor:
    """A completion to each of B states, (B, L), closed and filled up with the word `end`."""
    tokens, past, said = world.prompts[states], None, []
    ended = torch.zeros(len(states), dtype=torch.bool)
    for _ in range(world.longest):
        read = actor(tokens, past_key_values=past, use_cache=True)
        logits, past = read.logits[:, -1], read.past_key_values
        tokens = logits.argmax(-1, keepdim=True)
        if not greedy:
            tokens = torch.multinomial(logits.softmax(-1), 1)
        tokens[ended] = world.end
        said.append(tokens)
        ended |= tokens[:, 0] == world.end
        if ended.all():
            break
    return torch.cat([*said, torch.full_like(tokens, world.end)], dim=1)


def mean_logps(actor: LlamaForCausalLM, prompts: Tensor, chains: Tensor, end: int) -> Tensor:
    """Mean log-probability (B,) of the words of each completion, its first `end` included."""
    logits = actor(torch.cat([prompts, chains], dim=1)).logits[:, prompts.shape[1] - 1 : -1]
    is_said = (chains == end).cumsum(dim=1) <= 1
    return masked_mean(token_logprobs(logits, chains), is_said, dim=1)


# --- training ------------------------------------------------------------------------------------


def train(
    model: nn.Module, num_rows: int, batch_size: int, num_epochs: int, learning_rate: float,
    loss_of: Callable[[Tensor], Tensor],
) -> None:  # fmt: skip
    """Adam over shuffled batches of row numbers; the rate rises for a tenth, then falls."""
    epochs = [torch.randperm(num_rows).split(batch_size) for _ in range(num_epochs)]
    batches = [rows for epoch in epochs for rows in epoch]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=len(batches), pct_start=0.1, cycle_momentum=False
    )
    for rows in batches:
        optimizer.zero_grad()
        loss_of(rows).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def clone(actor: LlamaForCausalLM, world: World, num_chains: int, rng: np.random.Generator) -> None:
    """Teaches the form: chains of which a tenth is shortest, and the others are random."""
    states = rng.choice(world.starts, num_chains)
    chains = torch.full((num_chains, world.longest + 1), world.end)
    for row, state in enumerate(states):
        chain = world.shortest(state)
        if rng.random() > 0.1:
            chain = rng.choice(world.actions, rng.integers(1, 5)).tolist()
        chains[row, : len(chain)] = torch.tensor(chain)
    prompts = world.prompts[states]

    def loss_of(rows: Tensor) -> Tensor:
        return -mean_logps(actor, prompts[rows], chains[rows], world.end).mean()

    train(actor, num_chains, 32, 1, 3e-3, loss_of)


def returns_of_play(
    actor: LlamaForCausalLM, world: World, num_episodes: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The decisions of sampled episodes: their states, and the returns that followed, both (N,)."""
    here = rng.choice(world.starts, num_episodes)
    steps = []
    for _ in range(MOST_CHAINS):
        rewards, discounts, there = world.play(here, answer(actor, world, here, greedy=False))
        steps.append((here, rewards, discounts, ~world.tables.terminal[here]))
        here = there
    # After so many chains what would have followed is discounted to nearly nothing.
    returns, found = np.zeros(num_episodes), []
    for states, rewards, discounts, is_played in reversed(steps):
        returns = np.where(is_played, rewards + discounts * returns, 0.0)
        found.append((states[is_played], returns[is_played]))
    states, returns = (np.concatenate(column) for column in zip(*found, strict=True))
    return states, returns


def fit(critic: Critic, world: World, states: np.ndarray, returns: np.ndarray) -> np.ndarray:
    """Trains the critic on the mean return of each state; values (S,) of all states."""
    seen, row_of, counts = np.unique(states, return_inverse=True, return_counts=True)
    targets = torch.from_numpy(np.bincount(row_of, returns) / counts).float()
    weights = torch.from_numpy(counts / counts.mean()).float()
    prompts = world.prompts[seen]

    def loss_of(rows: Tensor) -> Tensor:
        losses = regression_loss(critic(prompts[rows]), targets[rows], "mse")
        return (weights[rows] * losses).mean()

    batch_size = min(120, len(seen))
    train(critic, len(seen), batch_size, 240 * batch_size // len(seen), 1e-3, loss_of)
    with torch.inference_mode():
        return critic(world.prompts).numpy()


def make_pairs(
    actor: LlamaForCausalLM, world: World, values: np.ndarray, states: np.ndarray
) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts, chosen and rejected completions, (P, 5) and twice (P, L): best and worst of K.

    The advantage of a chain is r + γ^k V(next state) − V(state); among equals the shorter one wins.
    """
    here = states.repeat(NUM_CANDIDATES)
    chains = answer(actor, world, here, greedy=False)
    rewards, discounts, there = world.play(here, chains)
    advantages = (rewards + discounts * values[there] - values[here]).round(5)
    lengths = (chains.numpy() == world.end).argmax(axis=1)
    questions = np.arange(len(states)).repeat(NUM_CANDIDATES)
    ranked = np.lexsort((lengths, -advantages, questions)).reshape(-1, NUM_CANDIDATES)
    best, worst = ranked[:, 0], ranked[:, -1]
    kept = advantages[best] - advantages[worst] >= MIN_MARGIN
    best, worst = best[kept], worst[kept]
    return world.prompts[here[best]], chains[best], chains[worst]


def prefer(
    actor: LlamaForCausalLM, world: World, pairs: tuple[Tensor, Tensor, Tensor], num_epochs: int
) -> None:
    """SimPO on the pairs, and a share of cloning on the chosen, so that chains keep their form."""
    prompts, chosen, rejected = pairs

    def loss_of(rows: Tensor) -> Tensor:
        both = torch.cat([chosen[rows], rejected[rows]])
        logps = mean_logps(actor, prompts[rows].repeat(2, 1), both, world.end)
        losses, _ = simpo_loss(*logps.chunk(2), beta=2.5, target_margin=0.5)
        return losses.mean() - 10.0 * logps[: len(rows)].mean()

    train(actor, len(prompts), 64, num_epochs, 2e-3, loss_of)


# --- the whole of it -----------------------------------------------------------------------------


def evaluate(actor: LlamaForCausalLM, world: World) -> dict[str, float]:
    """Greedy play from every start: who reaches the goal, who within two completions, and how."""
    here, num_actions = world.starts.copy(), np.zeros(len(world.starts))
    for number in range(MOST_CHAINS):
        chains = answer(actor, world, here, greedy=True)
        on = ~world.tables.terminal[here]
        said = (chains.numpy() == world.end).argmax(axis=1)
        here = np.where(on, world.play(here, chains)[2], here)
        num_actions += said * on
        if number == 1:
            within_two = world.tables.terminal[here].mean()
    solved = world.tables.terminal[here]
    ratio = (num_actions / world.distance[world.starts])[solved].mean() if solved.any() else np.nan
    return {"success": solved.mean(), "within two": within_two, "actions over shortest": ratio}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Clones, and goes through the rounds; returns the last figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4, help="of the grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--chains", type=int, default=12800, help="cloned before the first round")
    parser.add_argument("--states", type=int, default=3840, help="asked for a pair, each round")
    parser.add_argument("--epochs", type=int, default=6, help="over the pairs of a round")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    rng, begun = np.random.default_rng(options.seed), time.process_time()
    world = World(options.size)
    actor, critic = LlamaForCausalLM(shape(world)), Critic(world)

    def show(name: str) -> dict[str, float]:
        figures = evaluate(actor, world)
        told = ", ".join(f"{key} {value:.3f}" for key, value in figures.items())
        print(f"{name:12} {told}   ({time.process_time() - begun:.0f} CPU seconds)", flush=True)
        return figures

    show("untrained")
    clone(actor, world, options.chains, rng)
    figures = show("cloned")
    for number in range(1, options.rounds + 1):
        values = fit(critic, world, *returns_of_play(actor, world, 4 * len(world.starts), rng))
        states = rng.permutation(np.resize(world.starts, options.states))
        prefer(actor, world, make_pairs(actor, world, values, states), options.epochs)
        figures = show(f"round {number}")
    state = int(world.starts[world.distance[world.starts].argmax()])
    prompt, (chain,) = world.prompts[state], answer(actor, world, np.array([state]), greedy=True)
    said = [world.words[token] for token in chain if token != world.end]
    print(f"asked {' '.join(world.words[t] for t in prompt)!r} it answers {', '.join(said)}")
    return figures


if __name__ == "__main__":
    main()
