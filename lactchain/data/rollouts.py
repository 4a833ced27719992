"""Rollouts: a policy plays many episodes side by side, and what came out of them."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from lactchain.config.settings import EnvironmentConfig
from lactchain.data import evaluations
from lactchain.data.episodes import Episode, RecordedText, all_episodes, sampled_episodes
from lactchain.data.evaluations import EpisodeResult
from lactchain.data.parquet import stop_if_requested, work_through
from lactchain.data.sources import TRAJECTORIES
from lactchain.environments import faults
from lactchain.environments.exact import goes_by_reward, shortest_paths
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.environments.views import State
from lactchain.functional.random_streams import derive_seed
from lactchain.runs.console import under_way
from lactchain.types import Action, Policy, StreamingPolicy, Trajectory

LISTEN_SECONDS = 1.0
"""How long a rollout waits for answers before it looks whether it is to stop."""

AT_ONCE = 16
"""Decisions that are played at once where a world waits; each takes a session of its server."""

Decision = tuple[State | RecordedText, Action, int]
"""State, completion, and the seed of the play."""


class Rollouts:
    """Environments of one configuration, or Gymnasium id, and `num_envs` episodes side by side.

    Attributes:
        env: one of the environments, to ask for states and texts.
        tally: what this process has done: `num_chains`, completions; `num_plays`, how often those
            to single states were played, and `num_replayed_actions`, actions that this took beyond
            the first time; and seconds of each kind of work: `generate_seconds`,
            `environment_seconds`, `score_seconds`.
    """

    def __init__(self, config: EnvironmentConfig | str, num_envs: int = 256) -> None:
        self.config = EnvironmentConfig(config) if isinstance(config, str) else config
        self.num_envs = num_envs
        self.env = make_language_env(self.config)
        self.tally: Counter[str] = Counter()
        self._others: list[LanguageEnv] = []

    @cached_property
    def deterministic(self) -> bool | None:
        """Whether the world throws no dice; None where nothing exact tells.

        Where the outcomes of an action are known and there is no model, it does.
        """
        view = self.env.view
        if view.model is None:
            return None if view.outcomes is None else False
        return view.model(self.env.env).deterministic

    def collect(
        self,
        policy: Policy,
        episodes: Sequence[Episode],
        folder: str | Path | None = None,
        shard_size: int = 256,
        title: str = "rollouts",
    ) -> tuple[list[Trajectory], Counter[str]]:
        """Trajectories of the episodes, and the tally of all processes, earlier ones included.

        The processes share them out, by files in `folder`, which are kept, also where a signal
        asked to stop (`Interrupted`). Without a folder each process plays all, and writes nothing.
        """

        def make(part: Sequence[Episode], _: int = 0) -> tuple[list[Trajectory], Counter[str]]:
            before = self.tally.copy()
            return self.play(policy, part, Path(folder or "")), self.tally - before

        if folder is None:
            return make(episodes)
        return work_through(Path(folder), episodes, shard_size, make, TRAJECTORIES, title)

    def play(
        self, policy: Policy, episodes: Sequence[Episode], folder: Path = Path()
    ) -> list[Trajectory]:
        """Plays the episodes in this process, `num_envs` at a time; an idle place is refilled.

        A `StreamingPolicy` is not waited for: each episode goes on when its answer comes. The
        `folder` is named where a signal stops the rollout.
        """
        queue = iter(enumerate(episodes))
        played: dict[int, Trajectory] = {}
        count = min(self.num_envs, len(episodes))
        places = [_Place(env) for env in self._first_envs(count)]
        with (
            under_way("episodes", len(episodes)) as step,
            _answers_of(policy) as answers,
            _side_by_side(count if self.env.view.waits else 1) as each,
        ):
            plays = faults.undone(each)
            while True:
                idle = [place for place in places if place.index is None]
                with self.measure("environment"):
                    begun = zip(idle, queue, strict=False)
                    each(lambda begin: begin[0].begin(*begin[1]), begun)
                busy = [place for place in places if place.index is not None]
                if not busy:
                    return [played[index] for index in range(len(episodes))]
                stop_if_requested(folder)
                with self.measure("generate"):
                    answered = answers(busy)
                with self.measure("environment"):
                    ids = [place.index for place, _ in answered]
                    ended = plays(lambda a: a[0].step(a[1], self.config.id, policy.name), answered)
                played |= {i: done for i, done in zip(ids, ended, strict=True) if done is not None}
                self.tally["num_chains"] += len(answered)
                step.at(len(played))

    @faults.undone
    def outcomes(
        self,
        states: Sequence[State | RecordedText],
        actions: Sequence[Action],
        seed: int | Sequence[int],
    ) -> list[Trajectory]:
        """What each completion leads to from its state: B episodes of a single decision.

        The `seed` is of all plays, or of each. What is the same in all three is played once.
        """
        seeds = [seed] * len(actions) if isinstance(seed, int) else seed
        rows = list(zip(states, actions, seeds, strict=True))
        keys = [(str(state), action.text, play) for state, action, play in rows]
        distinct = dict(zip(keys, rows, strict=True))
        played = dict(zip(distinct, self.plays(distinct.values()), strict=True))
        self.tally["num_chains"] += len(actions)
        return [played[key] for key in keys]

    def plays(self, decisions: Iterable[Decision]) -> Iterator[Trajectory]:
        """Episodes of a single decision each.

        The state behind the text of a question is drawn by the seed.
        """
        decisions, count = iter(decisions), AT_ONCE if self.env.view.waits else 1
        with _side_by_side(count) as each:
            while some := list(islice(decisions, count)):
                places = map(_Place, self._first_envs(len(some)))
                with self.measure("environment"):
                    outcomes = each(self._decide, zip(places, some, strict=True))
                self.tally["num_plays"] += len(some)
                yield from outcomes

    def _decide(self, given: "tuple[_Place, Decision]") -> Trajectory:
        place, (state, action, seed) = given
        drawn = state.drawn(seed) if isinstance(state, RecordedText) else Episode(seed, state)
        place.begin(0, drawn)
        return place.step(action, self.config.id, "", cut=True)

    def _first_envs(self, count: int) -> list[LanguageEnv]:
        """So many of the environments, which are made when they are needed first."""
        missing = range(len(self._others), count - 1)
        self._others += [make_language_env(self.config) for _ in missing]
        return [self.env, *self._others[: count - 1]]

    def observe(self, states: Sequence[State]) -> list[str]:
        """The observation of each state at the beginning of an episode."""
        return [_reset(self.env, None, {"state": state})[0] for state in states]

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Adds the time of the block to the tally."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.tally[f"{kind}_seconds"] += time.perf_counter() - start


class _Place:
    """One environment and the episode under way in it, if any."""

    def __init__(self, env: LanguageEnv) -> None:
        self.env = env
        self.index: int | None = None

    def begin(self, index: int, episode: Episode) -> None:
        observation, info = _reset(self.env, episode.seed, episode.options)
        self.index, self.seed, self.region = index, episode.seed, episode.region
        self.observations, self.infos = [observation], [info]
        self.actions: list[Action] = []
        self.rewards: list[float] = []

    def question(self, policy: Policy) -> tuple[str, int]:
        """What the policy is to answer next, and the seed of its answer."""
        reads_states = getattr(policy, "reads_states", False)
        asked = json.dumps(self.infos[-1]["state"]) if reads_states else self.observations[-1]
        return asked, derive_seed(self.seed, len(self.actions))

    def step(
        self, action: Action, env_id: str, policy: str, cut: bool = False
    ) -> Trajectory | None:
        """Plays one completion; returns the episode if that ended it, or if it is cut here."""
        played = faults.called(self.env.step, self.env, self.seed, action.text, action.text)
        observation, reward, terminated, truncated, info = played
        self.observations.append(observation)
        self.infos.append(info)
        self.actions.append(action)
        self.rewards.append(reward)
        if not (terminated or truncated or cut or info["state"] not in self.region):
            return None
        self.index = None
        return Trajectory(
            env_id=env_id,
            seed=self.seed,
            observations=tuple(self.observations),
            actions=tuple(self.actions),
            rewards=tuple(self.rewards),
            infos=tuple(self.infos),
            terminated=terminated,
            truncated=truncated or not terminated,
            policy=policy,
        )


def _reset(env: LanguageEnv, seed: int | None, options: Mapping[str, Any] | None) -> Any:
    return faults.called(env.reset, env, seed, None, seed=seed, options=options)


Answered = list[tuple[_Place, Action]]


@contextmanager
def _side_by_side(count: int) -> Iterator[Callable[[Callable, Iterable], list]]:
    """What applies a function to each of some things, in so many threads, in order."""
    if count <= 1:
        yield lambda function, things: [function(thing) for thing in things]
        return
    with ThreadPoolExecutor(count) as threads:
        # What one call puts back may be what a call in another thread has changed.
        yield faults.undone(lambda function, things: list(threads.map(function, things)))


@contextmanager
def _answers_of(policy: Policy) -> Iterator[Callable[[Sequence[_Place]], Answered]]:
    """What asks a policy about episodes, and gives the answers that are there.

    A `StreamingPolicy` is asked about each by itself, and waited for until one answer is there, or
    for a moment; nothing is asked any more behind the block, however that ends.
    """

    def together(places: Sequence[_Place]) -> Answered:
        texts, seeds = zip(*(place.question(policy) for place in places), strict=True)
        return list(zip(places, policy.act(list(texts), list(seeds)), strict=True))

    if not isinstance(policy, StreamingPolicy):
        yield together
        return
    asked: dict[_Place, Future[Action]] = {}
    answers: SimpleQueue[_Place] = SimpleQueue()

    def row_by_row(places: Sequence[_Place]) -> Answered:
        for place in places:
            if place not in asked:
                asked[place] = policy.submit(*place.question(policy))
                asked[place].add_done_callback(lambda _, place=place: answers.put(place))
        ready = []
        with suppress(Empty):
            ready.append(answers.get(timeout=LISTEN_SECONDS))
            while True:
                ready.append(answers.get_nowait())
        return [(place, asked.pop(place).result()) for place in ready]

    try:
        yield row_by_row
    finally:
        for future in asked.values():
            future.cancel()


def episode_results(env: LanguageEnv, trajectories: Sequence[Trajectory]) -> list[EpisodeResult]:
    """How each episode went, beside the fewest actions that its start state needs.

    Start states from which nothing leads to the goal are left out. Without an exact model, with
    dice in it, or where rewards lead elsewhere, nobody knows either.
    """
    model = None if env.view.model is None else env.view.model(env.env)
    known = model is not None and model.deterministic and not goes_by_reward(model)
    shortest = shortest_paths(model) if known else None
    results = []
    for trajectory in trajectories:
        state = trajectory.infos[0]["state"]
        distance = None if shortest is None else float(shortest[model.row(state)])
        if distance == np.inf:
            continue
        results.append(
            EpisodeResult(
                state=state,
                success=trajectory.infos[-1]["success"],
                num_chains=len(trajectory),
                num_actions=sum(len(info["executed"]) for info in trajectory.infos),
                shortest=None if distance is None else int(distance),
                held_back=state in env.held_back,
            )
        )
    return results


def collect(
    policy: Policy, world: Rollouts | EnvironmentConfig | str, num_episodes: int, seed: int = 0
) -> list[Trajectory]:
    """Episodes of any policy in a world, a Gymnasium id say; starts go round the state space."""
    rollouts = world if isinstance(world, Rollouts) else Rollouts(world)
    return rollouts.play(policy, sampled_episodes(rollouts.env, num_episodes, seed))


def evaluate(
    policy: Policy,
    world: Rollouts | EnvironmentConfig | str,
    seed: int = 0,
    num_per_start: int = 1,
    folder: str | Path | None = None,
    starts: Sequence[State] | None = None,
) -> tuple[list[EpisodeResult], dict[str, float]]:
    """How episodes from every start state went, and their figures.

    These are of `summarize`, `endless_rate`, `part_figures` and `time_metrics`.

    Args:
        folder: of the trajectory files; None: none are written.
        starts: where episodes start instead.
    """
    rollouts = world if isinstance(world, Rollouts) else Rollouts(world)
    env = rollouts.env
    episodes = all_episodes(env, seed, num_per_start, starts)
    # Twice the places up to 128, so that those whose episodes end early are refilled. More places
    # than that are not: there should be shards for all processes.
    shard_size = min(256, 2 * rollouts.num_envs)
    trajectories, tally = rollouts.collect(policy, episodes, folder, shard_size, "evaluation")
    results = episode_results(env, trajectories)
    endless = evaluations.endless_rate(trajectories, env.grammar.max_chain_length)
    figures = evaluations.summarize(results, trajectories) | {"endless_rate": endless}
    parts = evaluations.part_figures(env, results, trajectories)
    return results, figures | parts | evaluations.time_metrics(tally)
