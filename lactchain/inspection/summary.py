"""The first screen of a page: what was learnt, from what, how sure that is, what still fails."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lactchain.data.alarms import RULES
from lactchain.data.evaluations import EpisodeResult, by_part
from lactchain.data.intervals import share_interval
from lactchain.inspection.rollout_tables import succeeded
from lactchain.inspection.run_view import RunView, round_of
from lactchain.inspection.worth import key
from lactchain.types import Trajectory

NUM_FAILURES = 12


class Share(NamedTuple):
    """How many of how many."""

    count: int
    of: int

    def __str__(self) -> str:
        return f"{self.count:,} of {self.of:,} ({100 * self.rate:.1f}\u00a0%)"

    def among(self, what: str) -> str:
        """The same in a sentence."""
        return f"{self.count:,} of {self.of:,} {what} ({100 * self.rate:.1f}\u00a0%)"

    @property
    def rate(self) -> float:
        """The share itself."""
        return self.count / self.of

    @property
    def interval(self) -> tuple[float, float]:
        """Where the rate lies that such a draw came from, with 95 %."""
        return share_interval(self.count, self.of)


class RoundFacts(NamedTuple):
    """What an evaluation found."""

    name: str
    solved: Share
    within_2: Share
    solved_by_distance: Mapping[int, Share]


def words(view: RunView) -> str:
    """What prompt, chain and reward are, in a sentence."""
    cost = view.world.get("chain_cost")
    less = f", less {cost:g} for each chain" if cost else ""
    return (
        "A prompt tells the model the state of the world; it answers with a chain, one action or "
        "several, all of which are played before it is asked again; the reward is what they "
        f"earn{less}."
    )


@dataclass(frozen=True)
class Summary:
    """The first screen.

    Attributes:
        sentences: three of them, or fewer of a run that has less to say.
        rounds: evaluations, in their order.
        failures: episodes of the last evaluation that failed, the shortest ways first.
        num_failures: of all of them.
        alarms: rules that went off, with the first round and the number of rounds.
        before, after: one start state, in the first evaluation and in the last; None where there
            are no two.
        under_way: what an unfinished run was doing last; empty of a finished one.
    """

    sentences: tuple[str, ...]
    rounds: tuple[RoundFacts, ...]
    failures: tuple[EpisodeResult, ...]
    num_failures: int
    alarms: tuple[Mapping[str, Any], ...]
    before: Trajectory | None
    after: Trajectory | None
    under_way: str


def summarise(view: RunView) -> Summary:
    """The facts of a run's first screen."""
    rounds = tuple(_facts(*found) for found in _named(view))
    last = view.results.get(chosen_round(view), [])
    failures = sorted(
        (result for result in last if not result.success), key=lambda r: r.shortest or math.inf
    )
    sentences = _learnt(view, rounds), _learnt_from(view), _how_sure(view, last)
    before, after = _before_and_after(view)
    return Summary(
        sentences=tuple(filter(None, sentences)),
        rounds=rounds,
        failures=tuple(failures[:NUM_FAILURES]),
        num_failures=len(failures),
        alarms=tuple(_alarms(view)),
        before=before,
        after=after,
        under_way=_under_way(view),
    )


def chosen_round(view: RunView) -> int | None:
    """The round that is the run's result, or the last that there is; None without rounds."""
    chosen = (view.summary or {}).get("round")
    return chosen if chosen in view.results else next(reversed(view.results), None)


def _named(view: RunView) -> list[tuple[str, list[EpisodeResult]]]:
    found = []
    for number, results in view.results.items():
        if results:
            name = "evaluation" if number is None else f"round {number}"
            found.append(("before training" if number == 0 else name, results))
            parts = by_part(results).items()
            found += [(f"{name}, {part.replace('_', ' ')}", some) for part, some in parts]
    return found


def _facts(name: str, results: Sequence[EpisodeResult]) -> RoundFacts:
    distances = sorted({r.shortest for r in results if r.shortest is not None})
    return RoundFacts(
        name,
        _share([r.success for r in results]),
        _share([r.success and r.num_chains <= 2 for r in results]),
        {d: _share([r.success for r in results if r.shortest == d]) for d in distances},
    )


def _share(flags: Sequence[bool]) -> Share:
    return Share(sum(flags), len(flags))


def _learnt(view: RunView, rounds: Sequence[RoundFacts]) -> str:
    if not rounds:
        return _learnt_otherwise(view)
    number = chosen_round(view)
    names = {"before training" if number == 0 else f"round {number}", "evaluation"}
    now = next(facts for facts in rounds if facts.name in names)
    text = f"The goal is reached in {now.solved.among('episodes')}"
    if len(rounds) > 1 and now is not rounds[0]:
        text += f"; before training it was in {rounds[0].solved}"
    return text + f". Within two completions it is in {now.within_2}."


def _learnt_otherwise(view: RunView) -> str:
    """Of a run that has figures, and no list of episodes."""
    figures = view.summary or {}
    if view.token_values:
        meta = view.token_values.meta
        return (
            f"It learnt values of tokens by {meta['method'].upper()}; Token values shows them "
            f"along {meta['episodes']} of {meta['of']:,} episodes."
        )
    if "best/fitness" in figures:
        evolved = "num_generations" in figures
        what, settings = ("generations", "evolution") if evolved else ("trials", "trials")
        count = (view.config.get(settings) or {}).get("num_episodes", "some")
        best = f"{figures['best/fitness']:.4g}, over {count} episodes"
        return f"The best of {figures.get(f'num_{what}', 0)} {what} has a fitness of {best}."
    if "last/episode_return" in figures:
        count = (view.config.get("loop") or view.config).get("num_eval_episodes", "some")
        text = f"The last weights reach a return of {figures['last/episode_return']:.4g}"
        spread = figures.get("last/episode_return_std")
        text += f" over {count} episodes"
        text += "" if spread is None else f" (standard deviation {spread:.2g})"
        success = figures.get("last/success_rate")
        return text + ("." if success is None else f"; {success:.1%} of them end well.")
    return ""


def _learnt_from(view: RunView) -> str:
    figures, parts = view.summary or {}, []
    for name, what in (
        ("num_cloned_chains", "cloned completions"),
        ("num_env_steps", "played actions"),
        ("num_pairs", "preference pairs"),
        ("num_decisions", "recorded decisions"),
        ("num_trials", "trials"),
        ("num_examples", "examples"),
    ):
        if figures.get(name):
            parts.append(f"{figures[name]:,} {what}")
    if not parts:
        return ""
    listed = ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]
    minutes = view.minutes
    device = view.environment.get("device")
    where = f" on {device}" if isinstance(device, str) and device else ""
    took = f", in {minutes:.1f} minutes{where}" if minutes else ""
    return f"It learnt from {listed}{took}."


def _how_sure(view: RunView, last: Sequence[EpisodeResult]) -> str:
    seed = (view.summary or {}).get("seed")
    one_seed = "" if seed is None else f" This is one training, of seed {seed}: others may differ."
    if not last:
        return one_seed.strip()
    starts = len({key(result.state) for result in last})
    solved = _share([result.success for result in last])
    played, is_luck = _how_played(view)
    drawn = (view.config.get("evaluation") or {}).get("num_starts")
    if starts == len(last) and not (drawn or is_luck or _throws_dice(view)):
        whole = f"Each of the {starts:,} start states" if starts > 1 else "The one start state"
        return f"{whole} was played once{played}.{one_seed}"
    low, high = solved.interval
    rate = f"between {100 * low:.1f} and {100 * high:.1f}\u00a0% (95\u00a0%)"
    return (
        f"{_counted(len(last), 'episode')} from {_counted(starts, 'start state')}{played}: that "
        f"puts the rate {rate}.{one_seed}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _how_played(view: RunView) -> tuple[str, bool]:
    """How the last evaluation chose completions, in words, and whether that is luck."""
    number = chosen_round(view)
    stage = view if number is None else view.stages.get(f"round_{number}/evaluation")
    actor = (stage.config.get("actor") if stage else None) or {}
    if actor.get("decoding") == "scored" and actor.get("values"):
        return ", by the completion of the highest value", False
    temperature = actor.get("temperature")
    if temperature is None:
        return "", False
    if temperature == 0:
        return ", greedily", False
    return f", sampled at temperature {temperature:g}", True


def _throws_dice(view: RunView) -> bool:
    return any("of_optimum" in name for name in (view.summary or {}))


def _before_and_after(view: RunView) -> tuple[Trajectory | None, Trajectory | None]:
    """The start state farthest from the goal that was failed first and solved in the end.

    Where none was, one that took fewer completions in the end.
    """
    rounds = {
        round_of(name): stage
        for name, stage in view.stages.items()
        if name.endswith("/evaluation") and stage.trajectories
    }
    if len(rounds) < 2:
        return None, None
    first, last = rounds[min(rounds)], rounds.get(chosen_round(view)) or rounds[max(rounds)]
    begun = {_start(t): t for t in first.trajectories}
    both = [(begun[_start(t)], t) for t in last.trajectories if _start(t) in begun]
    return max(both, key=_gain, default=(None, None))


def _start(trajectory: Trajectory) -> str:
    state = trajectory.infos[0].get("state")
    return trajectory.observations[0] if state is None else key(state)


def _gain(both: tuple[Trajectory, Trajectory]) -> tuple[bool, int, int]:
    before, after = both
    won = succeeded(after)
    return won and not succeeded(before), won * sum(after.num_actions), len(before) - len(after)


def _alarms(view: RunView) -> list[Mapping[str, Any]]:
    """Which rules went off, in which rounds, what that means and what helps."""
    curves, found = view.curves(), []
    for rule in RULES:
        steps, values = curves.get(f"alarm/{rule.name}", ([], []))
        rounds = [int(step) for step, value in zip(steps, values, strict=True) if value == 1]
        if rounds:
            facts = {"first": rounds[0], "rounds": len(rounds), "means": rule.means}
            found.append({"name": rule.name, **facts, "mend": rule.mend})
    return found


def _under_way(view: RunView) -> str:
    if view.summary is not None:
        return ""
    running = [name for name, stage in view.stages.items() if stage.summary is None]
    return running[-1] if running else "the next stage has not begun" if view.stages else "begun"
