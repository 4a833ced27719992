"""How well a critic predicts exact values that it was not told, by the number of chains played.

    python benchmarks/critic_targets.py --encoder weights/minilm --chains 500 2000 8000

V* and V^π of the 4x4 grid, in words that say where the goal is as seen from the agent. The player
is a mixture of shortest and random chains, so that its V^π is known exactly. One row a fit: a head
solved for in closed form on the frozen encoder, and, with --updates, the trainer's gradient steps.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch

from lactchain import EnvironmentConfig
from lactchain.config.settings import CriticConfig, TrainingConfig
from lactchain.data.episodes import Episode
from lactchain.data.evaluations import StateValues
from lactchain.data.rollouts import Rollouts
from lactchain.environments.exact import all_chains, optimal_chains, pad_chains, policy_values
from lactchain.environments.scripted import Mixture, OptimalChains, RandomChains
from lactchain.environments.views import tabular_model
from lactchain.models.critic import EmbeddingCritic
from lactchain.runs.process import seed_everything
from lactchain.runs.run import Run
from lactchain.trainers.base import train, training_arguments
from lactchain.trainers.critic import CriticTrainer, EpisodeTable, return_scale
from lactchain.types import Trajectory

WORDS = "The goal is {goal_right} to the right and {goal_down} down. You face {orientation}."
GAMMA, NUM_HELD = 0.95, 192


class Player:
    """A share of shortest chains, else random ones, and its exact values in all start states."""

    def __init__(self, share: float, longest: int, max_chains: int) -> None:
        config = EnvironmentConfig(
            kwargs={"size": 4}, template=WORDS, max_chain_length=9, chain_cost=0.02,
            max_chains=max_chains,
        )  # fmt: skip
        self.rollouts = Rollouts(config, 256)
        env = self.rollouts.env
        self.states = env.start_states()
        self.texts = [env.reset(options={"state": state})[0] for state in self.states]
        self.policy = Mixture(OptimalChains(env), RandomChains(env.grammar, longest), share)
        model, num_actions = tabular_model(env.env, env.view), len(env.grammar.action_names)
        best, drawn = optimal_chains(model, 9), all_chains(num_actions, longest)
        chains = sorted({*best, *drawn})
        place = {chain: column for column, chain in enumerate(chains)}
        probabilities = np.zeros((len(best), len(chains)))
        for chain in drawn:
            probabilities[:, place[chain]] += (1 - share) / longest / num_actions ** len(chain)
        probabilities[range(len(best)), [place[chain] for chain in best]] += share
        values = policy_values(
            model, pad_chains(chains), probabilities, GAMMA, chain_cost=env.chain_cost
        )
        self.exact = values[[model.row(state) for state in self.states]]

    def play(self, num_chains: int, seed: int, starts_from: np.ndarray) -> list[Trajectory]:
        """Episodes from random ones of some start states, until so many chains were played."""
        draws, found = np.random.default_rng(seed), []
        while sum(map(len, found)) < num_chains:
            starts = draws.choice(starts_from, size=16)
            seeds = draws.integers(1 << 30, size=16)
            found += self.rollouts.play(
                self.policy,
                [Episode(int(s), self.states[i]) for s, i in zip(seeds, starts, strict=True)],
            )
        return found

    def shown(self, critic: EmbeddingCritic, states: np.ndarray) -> str:
        """R2 and rho of a critic in some of the states."""
        values = critic.values([self.texts[i] for i in states])
        both = StateValues(tuple(map(self.states.__getitem__, states)), tuple(values.tolist()),
                           tuple(self.exact[states].tolist()), GAMMA)  # fmt: skip
        return f"R2 {both.r2:.4f}, rho {both.rho:.4f}"


def fits(
    encoder: str, episodes: list[Trajectory], updates: int, trace: float = 1.0
) -> Iterator[tuple]:
    """A row a fit: its name, critic and CPU seconds."""
    for steps in (0, updates) if updates else (0,):
        seed_everything(0, 1)
        begun = time.process_time()
        config = CriticConfig(encoder, gamma=GAMMA, max_length=64, frozen=not steps, trace=trace)
        scale = return_scale(episodes, GAMMA, "action")
        critic = EmbeddingCritic.from_config(config, trainable=True, value_scale=scale)
        with tempfile.TemporaryDirectory() as folder, Run.open(f"{folder}/run", config) as run:
            settings = TrainingConfig(max_steps=max(steps, 1), learning_rate=3e-4, batch_size=32)
            args = training_arguments(settings, folder, 0)
            trainer = CriticTrainer(critic, args, EpisodeTable(episodes, critic), run=run)
            if steps:
                train(trainer)
                yield f"{steps} updates of all weights", critic, time.process_time() - begun
                continue
            found = trainer.solve()
            name = f"frozen, solved (folds {found.r2:.3f}, slope {found.slope:.2f})"
            yield name, critic, time.process_time() - begun


def main() -> None:
    """Prints a line a fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoder", default="weights/minilm")
    parser.add_argument("--chains", type=int, nargs="*", default=[500, 2000, 8000])
    parser.add_argument("--share", type=float, default=0.1, help="of shortest chains")
    parser.add_argument("--longest", type=int, default=4, help="of random chains")
    parser.add_argument("--max_chains", type=int, default=4)
    parser.add_argument("--updates", type=int, default=0, help="gradient steps, beside")
    parser.add_argument("--traces", type=float, nargs="*", default=[1.0], help="λ of the returns")
    parser.add_argument("--seed", type=int, default=1, help="of the games and of unplayed goals")
    parser.add_argument("--unplayed", type=int, default=3, help="goal cells that no game has")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    best = Player(1.0, 1, 8)
    order = np.random.default_rng(0).permutation(len(best.states))
    held, seen = order[:NUM_HELD], order[NUM_HELD:]
    starts = [Episode(int(i), best.states[i]) for i in seen]
    for name, critic, seconds in fits(
        arguments.encoder, best.rollouts.play(best.policy, starts), 0
    ):
        print(
            f"V* of {NUM_HELD} states not seen: {name}: {best.shown(critic, held)}, {seconds:.1f} s"
        )
    player = Player(arguments.share, arguments.longest, arguments.max_chains)
    goals = np.array([4 * state["goal_x"] + state["goal_y"] for state in player.states])
    unplayed = np.random.default_rng(arguments.seed).permutation(16)[: arguments.unplayed]
    every, apart = np.arange(len(goals)), np.isin(goals, unplayed)
    print(f"V^pi: {player.exact.mean():.3f} ± {player.exact.std():.3f}")
    for number in arguments.chains:
        episodes = player.play(number, arguments.seed, every[~apart])
        success = np.mean([episode.terminated for episode in episodes])
        for trace in arguments.traces:
            for name, critic, seconds in fits(
                arguments.encoder, episodes, arguments.updates, trace
            ):
                found = f"all states {player.shown(critic, every)}"
                if apart.any():
                    found = f"never played {player.shown(critic, every[apart])}; {found}"
                told = f"{number} chains (success {success:.2f}), λ {trace:g}: {name}"
                print(f"{told}: {found}, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
