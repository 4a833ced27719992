"""Judges critics, or anything else that gives states numbers, by what a policy's states are worth.

Reads an actor and critics; writes RUN/states.json (what each state reads like, so that others can
bring numbers for them) where states are listed, RUN/judgement.json with figures, and
RUN/pairs_in_order.svg. Values are exact where the model of the world is known, chains are few, and
the actor samples under constrained decoding; elsewhere, and with `trajectories`, each of some start
states or of the texts of recorded episodes is played over and over, which judges values alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lactchain.config.bounds import Bound, Bounded, Count, PositiveShare
from lactchain.config.settings import EnvironmentConfig, RunConfig, SamplerConfig, check
from lactchain.data.episodes import RecordedText, go_round, recorded_texts, sampled_starts
from lactchain.data.exact_values import can_enumerate
from lactchain.data.rollouts import Rollouts
from lactchain.data.sources import open_trajectories
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, lists_states
from lactchain.errors import ConfigError
from lactchain.runs import distributed
from lactchain.runs.console import table
from lactchain.runs.run import Run
from lactchain.stages.stage_run import BatchSettings, show_place, stage
from lactchain.storage.files import atomic_write, to_json
from lactchain.storage.manifests import write_with_manifest
from lactchain.types import Critic

SHOWN = ("r2", "rho", "rho_within", "pairs_right", "slope")


@dataclass(frozen=True)
class JudgeConfig(Bounded):
    """Whose numbers, and by which policy's values."""

    run: RunConfig = RunConfig(run_dir="runs/judge")
    environment: EnvironmentConfig = EnvironmentConfig()
    actor: SamplerConfig = SamplerConfig(decoding="constrained")
    """The policy whose values count: that which played the episodes of a critic, if it is to be
    judged by what it has learnt."""
    critics: tuple[str, ...] = ()
    """Folders of critics, or of runs with one; JSON files `{values: [...]}` of a number for each
    state of RUN/states.json; `reward:FOLDER`, a model of transformers with one label. None:
    states.json alone is written."""
    num_candidates: Count = 16
    """Completions of the actor to each state, of which those that differ are compared."""
    num_replays: Annotated[int, Bound(at_least=2)] = 32
    """Plays of a start state, where values are not known exactly."""
    num_starts: Annotated[int, Bound(at_least=2)] = 128
    """Start states that are replayed there, or texts of `trajectories`."""
    trajectories: str | None = None
    """Folder of recorded episodes of this world, of whose texts `num_starts` are replayed in the
    place of start states: where all episodes begin alike, or a history is remembered."""
    num_envs: Count = 256
    """Episodes played side by side."""
    gamma: PositiveShare = 0.99
    """Discount of an action, for numbers that bring none of their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(len(set(self.critics)) == len(self.critics), "critics", "each once", self.critics)
        of_states = self.trajectories and [name for name in self.critics if name.endswith(".json")]
        check(not of_states, "critics", "no numbers of states beside trajectories", of_states)


def main(config: JudgeConfig) -> dict[str, Any]:
    """Judges; returns the figures of each critic."""
    batches = [BatchSettings("num_envs", "actor.max_new_tokens")]
    with stage("Judgement", config, batches, closing=_show) as run:
        if run.outcome is None:
            run.finish(judge_critics(config, run))
    return run.outcome


def judge_critics(config: JudgeConfig, run: Run) -> dict[str, Any]:
    """The figures of all critics, which it also writes."""
    from lactchain.models.actor import LanguageActor
    from lactchain_extras.foreign_critics import open_critic
    from lactchain_extras.judging import judge_by_replays

    rollouts = Rollouts(config.environment, config.num_envs)
    env = rollouts.env
    if config.trajectories is None and not lists_states(env):
        got = f"{config.environment.id} without trajectories"
        raise ConfigError(f"environment.id: expected a world that lists states, got {got}")
    critics = {name: open_critic(name, env, config.gamma) for name in config.critics}
    actor = LanguageActor.from_config(config.actor, env.grammar)
    sampled = config.actor.decoding == "constrained" and config.actor.temperature > 0
    if config.trajectories is None and env.history == 1 and can_enumerate(env) and sampled:
        figures = _by_model(config, run, critics, actor, env)
    else:
        starts = _starts(config, env)
        if len(starts) < 2:
            mend = "" if config.trajectories else "; give trajectories, whose texts are more"
            raise ConfigError(f"environment: expected two states to compare, got 1{mend}")
        _write_states(config, run, env, None)
        plays = config.num_replays, config.run.seed
        figures = judge_by_replays(critics, actor, rollouts, starts, *plays)
    if distributed.is_main():
        _write(run.path("judgement.json"), figures)
    return {
        f"{name}/{figure}": found[figure]
        for name, found in figures.items()
        for figure in SHOWN
        if figure in found
    }


def _starts(config: JudgeConfig, env: LanguageEnv) -> Sequence[State | RecordedText]:
    if config.trajectories is None:
        return sampled_starts(env, config.num_starts, "reported")
    texts = recorded_texts(open_trajectories(config.trajectories), env)
    return go_round(texts, min(config.num_starts, len(texts)), config.run.seed)


def _by_model(
    config: JudgeConfig, run: Run, critics: dict[str, Critic], actor: Any, env: LanguageEnv
) -> dict[str, dict[str, Any]]:
    from lactchain_extras.explorer.plots import line_chart
    from lactchain_extras.foreign_critics import Numbers
    from lactchain_extras.judging import Yardstick, judge

    count, seed = config.num_candidates, config.run.seed
    yardstick = Yardstick.of(actor, env, run.path("policy"), count, seed)
    if not distributed.is_main():
        return {}
    nothing = Numbers({text: 0.0 for s in yardstick.states for text in env.texts(s)}, config.gamma)
    exact = yardstick.against(nothing)[0].exact
    _write_states(config, run, env, exact)
    figures = {name: judge(critic, yardstick) for name, critic in critics.items()}
    lines = {
        name: ([part["from"] for part in found["by_margin"]],
               [part["pairs_right"] for part in found["by_margin"]])
        for name, found in figures.items()
    }  # fmt: skip
    if lines:
        chart = line_chart("pairs put in order", lines, "better by at least")
        atomic_write(run.path("pairs_in_order.svg"), str(chart))
    return figures


def _write_states(
    config: JudgeConfig, run: Run, env: LanguageEnv, values: Sequence[float] | None
) -> None:
    """All states in their order, if they are listed, each with its value where that is known."""
    if distributed.is_main() and lists_states(env):
        states = env.view_states()
        columns = zip(states, values or [None] * len(states), strict=True)
        listed = [{"state": s, "text": env.texts(s)[0], "value": value} for s, value in columns]
        _write(run.path("states.json"), {"gamma": config.gamma, "states": listed})


def _write(path: Path, content: dict[str, Any]) -> None:
    write_with_manifest(path, to_json(content, indent=1).encode(), {})


def _show(config: JudgeConfig, summary: dict[str, Any]) -> None:
    rows = [
        {"critic": name} | {figure: summary.get(f"{name}/{figure}") for figure in SHOWN}
        for name in config.critics
    ]
    if rows:
        table("By what the policy's states are worth", rows)
    show_place(config)
