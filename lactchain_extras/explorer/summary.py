"""The first screen of a page: what was learnt, from what, how sure that is, what still fails."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lactchain.command import scripts
from lactchain.data.alarms import RULES
from lactchain.data.evaluations import EpisodeResult, by_part, success_figures
from lactchain.data.intervals import share_interval
from lactchain.environments.views import State
from lactchain.inspection.run_view import RunView
from lactchain.runs.process import on_processes
from lactchain.types import Trajectory
from lactchain_extras.explorer.inspections import token_values
from lactchain_extras.explorer.tables import key

WORDS = (
    "A prompt tells the model the state of the world; it answers with a chain, one action or "
    "several, all of which are played before it is asked again; the reward is what they earn"
)
FACING = ("up", "right", "down", "left")
LEARNT_FROM = {
    "num_cloned_chains": "cloned completions",
    "num_env_steps": "played actions",
    "num_pairs": "preference pairs",
    "num_decisions": "recorded decisions",
    "num_examples": "examples",
}


class Share(NamedTuple):
    """How many of how many."""

    count: int
    of: int

    def __str__(self) -> str:
        return self.among("")

    def among(self, what: str) -> str:
        """The same in a sentence."""
        share = 100 * self.count / self.of
        return f"{self.count:,} of {self.of:,}{what} ({share:.1f}\u00a0%)"


class RoundFacts(NamedTuple):
    """What an evaluation found."""

    name: str
    solved: Share
    within_2: Share


@dataclass(frozen=True)
class Summary:
    """The first screen; `before` and `after` are one start state, None where there are no two."""

    sentences: tuple[str, ...]
    rounds: tuple[RoundFacts, ...]
    failures: tuple[EpisodeResult, ...]  # of the last evaluation, the shortest ways first
    num_last: int  # episodes in it
    alarms: tuple[Mapping[str, Any], ...]
    before: Trajectory | None
    after: Trajectory | None


def words(view: RunView) -> str:
    """What prompt, chain and reward are, in a sentence."""
    cost = view.world.get("chain_cost")
    return WORDS + (f", less {cost:g} for each chain." if cost else ".")


def summarise(view: RunView) -> Summary:
    """The facts of a run's first screen."""
    rounds, last = tuple(_rounds(view)), view.results.get(chosen_round(view), [])
    failures = sorted((r for r in last if r.success is False), key=lambda r: r.shortest or math.inf)
    told = _learnt(view, rounds), _learnt_from(view), _how_sure(view, last)
    facts = tuple(filter(None, told)), rounds, tuple(failures), len(last), tuple(_alarms(view))
    return Summary(*facts, *before_and_after(view, chosen_round(view)))


def succeeded(trajectory: Trajectory) -> bool:
    """Whether an episode ended well."""
    return bool(trajectory.infos[-1].get("success", False))


def state_label(view: RunView, state: State) -> str:
    """A state in words, as the other screens have it; the fields of one that no picture shows."""
    scene = view.picture.look(state) if view.picture else None
    if scene is None or scene.agent is None:
        return ", ".join(f"{name} {value}" for name, value in filled(state).items())
    x, y, *heading = scene.agent
    facing = f" facing {FACING[heading[0]]}" if heading else ""
    return f"({x}, {y}){facing}" + (f", {scene.group}" if scene.group else "")


def filled(state: State) -> State:
    """A state without its empty lists, such as that of what was played before it began."""
    return {name: value for name, value in state.items() if value != []} or state


def chosen_round(view: RunView) -> int | None:
    """The round that is the run's result, or the last that there is; None without rounds."""
    chosen = (view.summary or {}).get("round")
    return chosen if chosen in view.results else next(reversed(view.results), None)


def round_name(number: int | None) -> str:
    """What an evaluation is called."""
    return {None: "evaluation", 0: "before any round"}.get(number, f"round {number}")


def _rounds(view: RunView) -> Iterator[RoundFacts]:
    for number, results in view.results.items():
        if results and success_figures(results):
            yield _facts(name := round_name(number), results)
            for part, some in by_part(results).items():
                yield _facts(f"{name}, {part.replace('_', ' ')}", some)


def _facts(name: str, results: Sequence[EpisodeResult]) -> RoundFacts:
    won = [result for result in results if result.success]
    soon = sum(result.num_chains <= 2 for result in won)
    return RoundFacts(name, Share(len(won), len(results)), Share(soon, len(results)))


def _learnt(view: RunView, rounds: Sequence[RoundFacts]) -> str:
    if not rounds:
        return _learnt_otherwise(view)
    now = next(facts for facts in rounds if facts.name == round_name(chosen_round(view)))
    before = "" if now is rounds[0] else f"; before any round it was in {rounds[0].solved}"
    reached = f"The goal is reached in {now.solved.among(' episodes')}{before}."
    return f"{reached} Within two completions it is in {now.within_2}."


def _learnt_otherwise(view: RunView) -> str:
    """Of a run that has figures, and no list of episodes."""
    figures = view.summary or {}
    if valued := token_values(view):
        meta = valued.meta
        shown = f"Token values shows them along {meta['episodes']} of {meta['of']:,} episodes."
        return f"It learnt values of tokens by {meta['method'].upper()}; {shown}"
    if "best/fitness" in figures:
        count = (view.config.get("evolution") or {}).get("num_episodes", "some")
        best = f"{figures['best/fitness']:.4g}, over {count} episodes"
        return f"The best of {figures['num_generations']} generations has a fitness of {best}."
    if "last/episode_return" not in figures:
        return ""
    count = (view.config.get("loop") or view.config).get("num_eval_episodes", "some")
    spread, success = figures.get("last/episode_return_std"), figures.get("last/success_rate")
    reached = f"{figures['last/episode_return']:.4g} over {count} episodes"
    reached += "" if spread is None else f" (standard deviation {spread:.2g})"
    end = "." if success is None else f"; {success:.1%} of them end well."
    return f"The last weights reach a return of {reached}{end}"


def _learnt_from(view: RunView) -> str:
    figures, device = view.summary or {}, view.environment.get("device")
    found = {what: figures[name] for name, what in LEARNT_FROM.items() if figures.get(name)}
    if not found:
        return ""
    *first, last = (f"{count:,} {what}" for what, count in found.items())
    listed = " and ".join(filter(None, (", ".join(first), last)))
    where = f" on {device}" if isinstance(device, str) and device else ""
    took = f", in {view.minutes:.1f} minutes{where}" if view.minutes else ""
    return f"It learnt from {listed}{took}."


def _how_sure(view: RunView, last: Sequence[EpisodeResult]) -> str:
    figures = view.summary or {}
    seed = figures.get("seed")
    one_seed = "" if seed is None else f" This is one training, of seed {seed}: others may differ."
    if not last or not success_figures(last):
        return one_seed.strip()
    starts = len({key(result.state) for result in last})
    played, is_luck = _how_played(view)
    drawn = (view.config.get("evaluation") or {}).get("num_starts")
    throws_dice = any("of_optimum" in name for name in figures)
    went = {(key(r.state), r.success, r.num_chains, r.num_actions) for r in last}
    if starts == len(went) and not (drawn or is_luck or throws_dice):
        whole = f"Each of the {starts:,} start states" if starts > 1 else "The one start state"
        if starts == len(last):
            return f"{whole} was played once{played}.{one_seed}"
        return f"{whole} was played more than once{played}, and went alike each time.{one_seed}"
    stage = view.evaluated.get(chosen_round(view), view)
    measured = [(stage.summary or {}).get(f"success_rate_{end}") for end in ("low", "high")]
    if None in measured:  # else it goes by the starts that were drawn
        measured = share_interval(sum(result.success for result in last), len(last))
    low, high = measured
    rate = f"between {100 * low:.1f} and {100 * high:.1f}\u00a0% (95\u00a0%)"
    counts = ((len(last), "episode"), (starts, "start state"))
    counted = " from ".join(f"{n:,} {what}{'' if n == 1 else 's'}" for n, what in counts)
    return f"{counted}{played}: that puts the rate {rate}.{one_seed}"


def _how_played(view: RunView) -> tuple[str, bool]:
    """How the last evaluation chose completions, in words, and whether that is luck."""
    number = chosen_round(view)
    stage = view if number is None else view.evaluated.get(number)
    actor = (stage.config.get("actor") if stage else None) or {}
    if actor.get("decoding") == "scored" and actor.get("values"):
        return ", by the completion of the highest value", False
    temperature = actor.get("temperature")
    if not temperature:
        return "" if temperature is None else ", greedily", False
    return f", sampled at temperature {temperature:g}", True


def before_and_after(
    view: RunView, number: int | None
) -> tuple[Trajectory | None, Trajectory | None]:
    """Episodes from one start state before the rounds, and after that of a number, or the last.

    It is the one farthest from the goal that was failed first and solved in the end; where none
    was, one that took fewer completions in the end.
    """
    rounds = {number: stage for number, stage in view.evaluated.items() if stage.trajectories}
    if len(rounds) < 2:
        return None, None
    first, last = rounds[min(rounds)], rounds.get(number) or rounds[max(rounds)]
    begun = {_start(t): t for t in first.trajectories}
    both = [(begun[_start(t)], t) for t in last.trajectories if _start(t) in begun]
    return max(both, key=_gain, default=(None, None))


def _start(trajectory: Trajectory) -> str:
    return key(trajectory.infos[0].get("state") or trajectory.observations[0])


def _gain(both: tuple[Trajectory, Trajectory]) -> tuple[bool, int, int]:
    before, after = both
    won = succeeded(after)
    return won and not succeeded(before), won * sum(after.num_actions), len(before) - len(after)


def _alarms(view: RunView) -> Iterator[Mapping[str, Any]]:
    """Which rules went off, in which rounds, what that means and what helps."""
    curves = view.curves()
    for rule in RULES:
        points = [*zip(*curves.get(f"alarm/{rule.name}", ([], [])), strict=True)]
        rounds = [int(step) for step, value in points if value == 1]
        if rounds:
            when, mend = f"first in round {rounds[0]}, in {len(rounds)} of the rounds", rule.mend
            if rounds == [0]:
                when, mend = "before the first round only", rule.before
            alarm = {"name": rule.name, "when": when, "means": rule.means, "mend": mend}
            yield alarm | {"is_over": points[-1][1] == 0}


def status(view: RunView, stage: str = "") -> str:
    """How far an unfinished run is, in that `stage` if given, and by which command it goes on."""
    if view.summary is not None:
        return ""
    running = [name for name, part in view.stages.items() if part.summary is None]
    doing = running[-1] if running else "between two stages" if view.stages else "at the beginning"
    if stage or view.state == "under way":
        return f"Under way: {stage or doing}."
    about, run_dir = view.environment, view.directory
    began = view.config.get("run", {}).get("run_dir", run_dir)
    moved = [] if Path(began).resolve() == run_dir.resolve() else ["--run.run_dir", f"{run_dir}"]
    stopped = f"Stopped: {doing}. Give the same command to go on"
    name, own = about.get("command"), {"quickstart": ["--run.run_dir", f"{run_dir}"]}
    if name not in scripts() and name not in own:
        return f"{stopped}."
    words = ["lactchain", name, "--config", f"{run_dir}/config.yaml", *own.get(name, moved)]
    words += ["--import", ",".join(about["imports"])] if about.get("imports") else []
    return f"{stopped}, or: {shlex.join(on_processes(words, about.get('world_size', 1)))}"
