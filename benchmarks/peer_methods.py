"""The methods of `peers.py` that go by rounds, or learn offline; `peer_grpo.py` has TRL's.

Each is a function of a `Course` and what it may set. It trains from the warm start on, tells the
course how many environment steps it has taken and who plays now, and ends when the course is over.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer_worlds import World, as_measured, greedy, measure

from lactchain.config.settings import RunConfig, SamplerConfig, TrainingConfig, recast
from lactchain.data.episodes import (
    Episode,
    go_round,
    recorded_texts,
    sampled_episodes,
    sampled_states,
)
from lactchain.data.preferences import Candidates, make_pairs, require_pairs, write_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.data.sources import read_trajectories, write_trajectories
from lactchain.environments.language import LanguageEnv, make_language_env
from lactchain.functional.random_streams import derive_seed
from lactchain.models.actor import LanguageActor
from lactchain.runs.run import Run
from lactchain.stages import train_simpo
from lactchain.stages.make_preferences import MakePreferencesConfig
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.rounds import Rounds
from lactchain.stages.stage_run import stage as begin_stage
from lactchain.storage.files import append_json_lines, read_json, read_json_lines, write_json
from lactchain.types import Policy, Trajectory
from lactchain_extras.stages import train_ilql
from lactchain_extras.stages.train_ilql import TrainILQLConfig
from lactchain_extras.token_values.settings import ILQLConfig

NUM_ENVS = 512
"""Episodes side by side."""

NUM_ASKED = 128
"""Episodes whose texts are answered, where states are reached by playing."""


class Paused(Exception):
    """The minutes that were given are over; the same command goes on."""


class Course:
    """How one method does in one world with one seed: its points, in a file that is only added to.

    A point says the environment steps and the seconds of the processor that training took so far,
    and what the greedy actor is then worth. Measuring counts for neither.

    Args:
        folder: of the method's files.
        config: the pipeline of the world, whose actor is the warm start.
        pause_at: on `time.monotonic`'s clock.
    """

    def __init__(
        self, folder: Path, world: World, config: RunPipelineConfig, pause_at: float
    ) -> None:
        self.folder, self.world, self.config, self.pause_at = folder, world, config, pause_at
        self.file = folder / "points.jsonl"
        self.points = read_json_lines(self.file) if self.file.exists() else []
        self._grammar = make_language_env(config.environment).grammar
        self._resume_clock()

    @property
    def practised(self) -> Any:
        """The world that the method learns in."""
        return self.world.practised(self.config.environment)

    @property
    def seed(self) -> int:
        """Of the method."""
        return self.config.run.seed

    def has_room(self, num_env_steps: int, more: int) -> bool:
        """Whether so many more steps fit into the budget, and there is time for them."""
        has_time = self.cpu_seconds() < self.world.cpu_seconds
        return has_time and num_env_steps + more <= self.world.budget

    def cpu_seconds(self) -> float:
        """Of training, until now."""
        return self._before + time.process_time() - self._since

    def point(self, num_env_steps: int, actor: Any, **more: Any) -> None:
        """Measures an actor, given or as a configuration, unless that was done before.

        Args:
            more: what else is noted.

        Raises:
            Paused: the time is over; a new point is kept.
        """
        cpu = self.cpu_seconds()
        if not self.points or num_env_steps > self.points[-1]["num_env_steps"]:
            player = actor if isinstance(actor, LanguageActor) else greedy(actor, self._grammar)
            figures = measure(player, self.config.environment, self.world.num_games)
            line = {"num_env_steps": int(num_env_steps), "cpu_seconds": cpu, **figures, **more}
            self.folder.mkdir(parents=True, exist_ok=True)
            append_json_lines(self.file, [line])
            self.points.append(line)
            self._resume_clock()
            if time.monotonic() > self.pause_at:
                raise Paused

    def keep_clock(self) -> None:
        """Keeps the seconds until now, when something is done that will not be done again."""
        write_json(self.folder / "clock.json", {"cpu_seconds": self.cpu_seconds()})

    def _resume_clock(self) -> None:
        kept = self.folder / "clock.json"
        known = [point["cpu_seconds"] for point in self.points[-1:]]
        known += [read_json(kept)["cpu_seconds"]] if kept.exists() else []
        self._before = max(known, default=0.0)
        self._since = time.process_time()


def num_env_steps(trajectories: Sequence[Trajectory]) -> int:
    """Actions that episodes played, as all methods count them: what is no chain counts as one."""
    return sum(sum(trajectory.num_actions) for trajectory in trajectories)


# --- by rounds -----------------------------------------------------------------------------------


def simpo(course: Course, **changes: Any) -> None:
    """Critic, pairs that it ranks, SimPO: the pipeline."""
    by_rounds(course, Rounds, changes)


def cloned_chosen(course: Course, **changes: Any) -> None:
    """The pipeline without its preference loss: the likelihood of `chosen` is all that is left."""
    by_rounds(course, Rounds, {"preference_weight": 0.0} | changes)


def by_return(
    course: Course, num_candidates: int = 8, num_states: int | None = None, **changes: Any
) -> None:
    """No critic: answers to a state are played on to the end, and ranked by what came of it.

    Args:
        num_states: of a round; None: those of the pipeline.
    """
    config = course.config
    count = num_states or config.simpo.preferences.num_states
    preferences = replace(config.simpo.preferences, num_candidates=num_candidates, num_states=count)
    course.config = replace(config, simpo=replace(config.simpo, preferences=preferences))
    by_rounds(course, RankedByReturn, changes)


def by_rounds(course: Course, kind: type[Rounds], changes: Mapping[str, Any]) -> None:
    """Rounds, while one like the last fits into the budget; `changes` are of SimPO's settings."""
    config = course.config
    actor = replace(config.simpo, loss=replace(config.simpo.loss, **changes))
    critic = replace(config.critic, compare_with_exact=False)
    where = replace(config.run, run_dir=str(course.folder / "run"))
    config = replace(
        config, run=where, environment=course.practised, simpo=actor, critic=critic, target={}
    )
    with Run.of(config) as run:
        rounds, before = kind(config, run), 0
        for number in range(1, course.world.num_rounds + 1):
            rounds.train_critic(number)
            course.keep_clock()
            if not rounds.train_actor(number):
                return
            steps = steps_of_rounds(rounds, config)
            course.point(steps, rounds.actor, round=number)
            if not course.has_room(steps, steps - before):
                return
            before = steps


def steps_of_rounds(rounds: Rounds, config: RunPipelineConfig) -> int:
    """Environment steps of all rounds: the critics' episodes, and the candidates of the pairs.

    The pipeline counts the actions of every candidate, equal ones included, though it plays those
    once. To these come the candidates that are no chains, as one step each.
    """
    preferences, steps = config.simpo.preferences, 0
    for summary in rounds.results.critic_summaries + rounds.results.actor_summaries:
        steps += summary["num_env_steps"]
        if "pairs/num_plays" in summary:
            num_candidates = preferences.num_states * preferences.num_candidates
            steps += round(summary["rollout/invalid_rate"] * num_candidates)
    return steps


class RankedByReturn(Rounds):
    """Rounds without a critic."""

    def train_critic(self, number: int) -> None:
        """There is none."""

    def train_actor(self, number: int) -> bool:
        """Pairs by return, and SimPO on them."""
        stage = self._improvement(number)
        pairs = MakePreferencesConfig(
            run=self._stage(f"round_{number}/pairs"),
            environment=stage.environment,
            actor=recast(stage.actor, SamplerConfig),
            preferences=stage.preferences,
        )
        gamma = self.config.critic.config.gamma
        with begin_stage("Pairs by return", pairs) as run:
            if run.outcome is None:
                run.finish(pairs_by_return(pairs, run, gamma))
        pairs_folder = str(Path(pairs.run.run_dir) / "pairs")
        summary = train_simpo.main(replace(stage, trajectories=None, pairs=pairs_folder))
        self._take_actor(stage, summary | {"num_env_steps": run.outcome["num_env_steps"]})
        return True


def pairs_by_return(config: MakePreferencesConfig, run: Run, gamma: float) -> dict[str, Any]:
    """The best of K answers to each state over the worst, by the mean return of what followed."""
    rollouts = Rollouts(config.environment, NUM_ENVS)
    actor = LanguageActor.from_config(config.actor, rollouts.env.grammar)
    preferences, seed = config.preferences, config.run.seed
    played = []
    if asks_texts(rollouts.env):
        played = rollouts.play(actor, sampled_episodes(rollouts.env, NUM_ASKED, seed))
    starts = starts_of_groups(rollouts, played, preferences.num_states, derive_seed(seed, "pairs"))
    groups = play_groups(actor, rollouts, starts, preferences.num_candidates, seed)
    candidates = [
        Candidates(
            observation=group[0].observations[0],
            actions=tuple(member.actions[0] for member in group),
            returns=tuple(float(member.returns(gamma)[0]) for member in group),
            is_chain=tuple(not member.infos[1]["invalid_action"] for member in group),
            env_id=config.environment.id,
            seed=seed,
            state=group[0].infos[0]["state"],
        )
        for group in groups
    ]
    pairs, dropped = make_pairs(candidates, min_margin=preferences.min_margin)
    require_pairs(pairs, dropped)
    write_pairs(run.path("pairs") / "pairs.parquet", pairs)
    steps = num_env_steps(played) + sum(map(num_env_steps, groups))
    return {"num_pairs": len(pairs), "num_env_steps": steps} | dropped


def asks_texts(env: LanguageEnv) -> bool:
    """Whether states are reached by playing: texts remember, or one begins in few of them."""
    return env.history != 1 or env.view.outcomes is not None


def starts_of_groups(
    rollouts: Rollouts, played: Sequence[Trajectory], count: int, seed: int
) -> list[Episode]:
    """Where groups begin: each state as often as any other, or else each text that was met."""
    if not played:
        return [Episode(seed, state) for state in sampled_states(rollouts.env, count, seed)]
    questions = go_round(recorded_texts(played, rollouts.env), count, seed)
    return [question.drawn(derive_seed(seed, i)) for i, question in enumerate(questions)]


def play_groups(
    policy: Policy, rollouts: Rollouts, starts: Sequence[Episode], size: int, seed: int
) -> list[list[Trajectory]]:
    """Each state answered `size` times, each answer played on to the end by the same policy.

    All members of a group begin in one state, since a world can be set to it; dice are their own.
    """
    episodes = [
        replace(start, seed=derive_seed(seed, "group", number, member))
        for number, start in enumerate(starts)
        for member in range(size)
    ]
    played = rollouts.play(policy, episodes)
    return [played[first : first + size] for first in range(0, len(played), size)]


# --- offline -------------------------------------------------------------------------------------


OFFLINE = {"expectile": 0.9, "cql_weight": 0.01, "tau": 0.01, "group_by": "episode"}
"""Settings of ILQL; a batch is of episodes, since a state has thousands of different answers."""


def ilql(
    course: Course,
    value_weight: float = 4.0,
    max_steps: int = 600,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    **settings: Any,
) -> None:
    """ILQL on episodes of the warm start, as many as the budget of steps allows."""
    config, folder = course.config, course.folder
    steps = collect_offline(course, folder / "trajectories")
    course.keep_clock()
    stage = TrainILQLConfig(
        run=RunConfig(run_dir=str(folder / "run"), seed=course.seed, threads=1),
        environment=course.practised,
        actor=replace(config.actor, dtype="float32"),
        trajectories=str(folder / "trajectories"),
        ilql=ILQLConfig(**OFFLINE | settings),
        training=TrainingConfig(
            learning_rate=learning_rate, batch_size=batch_size, max_steps=max_steps
        ),
    )
    train_ilql.main(stage)
    values = str(folder / "run" / "values")
    guided = replace(as_measured(config.actor), values=values, value_weight=value_weight)
    course.point(steps, guided)


def collect_offline(course: Course, folder: Path, num_at_once: int = 1024) -> int:
    """Episodes of the warm start at temperature 1, while they fit in; how many steps they took."""
    rollouts = Rollouts(course.practised, NUM_ENVS)
    actor = LanguageActor.from_config(course.config.actor, rollouts.env.grammar)
    steps, latest, number = 0, 0, 0
    while steps + latest <= course.world.budget:
        file = folder / f"trajectories_{number:05}.parquet"
        if not file.exists():
            seed = derive_seed(course.seed, "offline", number)
            episodes = sampled_episodes(rollouts.env, num_at_once, seed)
            write_trajectories(file, rollouts.play(actor, episodes))
        latest, number = num_env_steps(read_trajectories(file)), number + 1
        steps += latest
    return steps


METHODS: dict[str, Callable[..., None]] = {
    "simpo": simpo,
    "cloned_chosen": cloned_chosen,
    "by_return": by_return,
    "ilql": ilql,
}
