"""What the rounds of a pipeline came to: which of them count, whether that is enough, the summary.

Those count that are not worse than the best one before them. Rounds are compared on start states
that no figure of the run is reported of: who picks the best of several rounds by a sample has
picked its luck, too.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lactchain.config.settings import ActorConfig, GuidedActorConfig, RunConfig
from lactchain.data import alarms
from lactchain.data.evaluations import AGAIN, PARTS, practised, read_episodes
from lactchain.data.intervals import paired_interval
from lactchain.data.sources import read_trajectories
from lactchain.runs import distributed
from lactchain.runs.console import GrowingTable
from lactchain.runs.run import Run
from lactchain.stages import evaluate
from lactchain.stages.evaluate import EvaluateConfig, EvaluationConfig
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.storage.files import stand_for
from lactchain.storage.manifests import verify_if_described, write_with_manifest

AT_MOST = {"actions_over_shortest", "invalid_rate", "sampled_invalid_rate"}
"""Figures that a target bounds from above; all others are bounded from below."""

FIGURES_OF_ROUNDS = (
    "success_rate",
    "success_within_2_chains",
    "mean_chain_length",
    "actions_over_shortest",
    "sampled_invalid_rate",
    "retrieval_accuracy",
    "alarms",
)
FIGURES_OF_PARTS = tuple(f"{part}/{name}" for part in PARTS for name in FIGURES_OF_ROUNDS)
"""Of practised start states, and of those held back."""

FIGURES_OF_CHANCE = (
    "expected_success",
    "optimum_success",
    "expected_value",
    "optimum_value",
    "of_optimum",
)
"""Of worlds with chance, or with rewards beside the goal; see `expected_figures`."""

OF_FIRST_CRITIC = ("critic_r2", "critic_rmse", "critic_rho", "time/chains_per_second")
"""What is told of the first round's critic: it valued a policy that is then replaced."""

SHOWN = {
    "success": "success_rate",
    "in two": "success_within_2_chains",
    "over shortest": "actions_over_shortest",
    "return": "episode_return",
    "no chain": "sampled_invalid_rate",
}
"""Columns of the table that grows by a row a round."""

TITLES = {name: title for title, name in SHOWN.items()} | {"of_optimum": "of optimum"}
"""What the table calls figures that a target may ask for."""

NEARLY_ALWAYS = 0.95
"""A success rate of drawn episodes beyond which rounds are compared by what they earn."""

PATIENCE = 4
"""Rounds that are no better than the best before, by success and then by return, after which a run
ends."""

MOST_UNDONE = 2
"""Rounds in a row that are undone before the run ends."""

TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
"""How the start states are played, each once: a player that never wanders tells less of what was
learnt than one that is asked to."""

log = logging.getLogger(__name__)


def play_selection(
    config: RunPipelineConfig, actor: GuidedActorConfig, folder: RunConfig
) -> dict[str, float]:
    """Plays a round's actor on the sample for selection, each way in a folder within `folder`.

    Returns `selection/<how>/<figure>`.
    """
    settings = EvaluationConfig(
        num_envs=config.evaluation.num_envs,
        num_starts=config.selection.num_starts,
        sample="selection",
        num_samples=0,
    )
    found = {}
    for how, temperature in TEMPERATURES.items():
        run = replace(folder, run_dir=f"{folder.run_dir}/{how}")
        player = replace(actor, temperature=temperature)
        asked = EvaluateConfig(
            run=run, environment=config.environment, actor=player, evaluation=settings
        )
        figures = evaluate.main(asked)
        for name in ("success_rate", "success_within_2_chains"):
            found[f"selection/{how}/{name}"] = practised(figures, name)
    return found


def is_worse(run_dir: Path, number: int, best: int) -> bool:
    """Whether a round is worse than another: its interval of the difference excludes equality.

    In greedy and in sampled success, or in greedy success within two completions; never in greedy
    success alone, which a player that stops to wander loses by getting better.
    """

    def solved(number: int, how: str, most_chains: float) -> np.ndarray:
        """Whether each practised start state was solved within so many completions (N,)."""
        results = read_episodes(run_dir / f"round_{number}/selection/{how}/episodes.json")
        kept = (r for r in results if not r.held_back)
        return np.array([float(r.success and r.num_chains <= most_chains) for r in kept])

    def falls(how: str, most_chains: float = math.inf) -> bool:
        before, after = (solved(n, how, most_chains) for n in (best, number))
        return paired_interval(before, after)[1] < 0

    return falls("greedy", most_chains=2) or (falls("greedy") and falls("sampled"))


def score(figures: dict[str, Any]) -> float:
    """What rounds that count are compared by: success, greedy and sampled, and that within two."""
    names = ("greedy/success_rate", "sampled/success_rate", "greedy/success_within_2_chains")
    return sum(figures[f"selection/{name}"] for name in names)


class RoundResults:
    """What the rounds of a pipeline came to so far.

    Attributes:
        evaluations: figures before the first round, and after each; with its alarms, the `actor`
            and the `critic` that it left, and whether it was undone.
        actor_summaries, critic_summaries: of the stages that trained them.
        bases: the models that actor and critic began with.
    """

    def __init__(self, config: RunPipelineConfig, run: Run) -> None:
        self.config, self.run = config, run
        self.evaluations: list[dict[str, Any]] = []
        self.actor_summaries: list[dict[str, Any]] = []
        self.critic_summaries: list[dict[str, Any]] = []
        self.bases: dict[str, str] = {}
        self._table = GrowingTable()
        self._ended = 0.0

    def add(
        self, figures: dict[str, Any], actor: ActorConfig, critic: str | None, undone: bool = False
    ) -> None:
        """Takes the evaluation of a round, the first being that before all rounds.

        The metrics of the pipeline are these figures, over rounds, and the alarms. The run goes on
        without a round that is `undone`.
        """
        number = len(self.evaluations)
        judged = figures
        if number:
            figures = figures | alarms.loss(self.kept, figures)
            judged = self.actor_summaries[-1] | figures
        alarms.warn(figures, before=number == 0)
        fired = alarms.fired(judged, before=number == 0)
        metrics = {f"eval/{name}": value for name, value in figures.items()}
        metrics |= {f"alarm/{name}": int(is_on) for name, is_on in fired.items()}
        metrics |= {"time/wall_seconds": self.run.worked()["wall_seconds"]}
        ended = self.run.log_once(metrics, step=number)["time/wall_seconds"]
        names = [name for name, is_on in fired.items() if is_on] + ["undone"] * undone
        models = {"actor": {"model": actor.model, "adapter": actor.adapter}, "critic": critic}
        self.evaluations.append(figures | models | {"alarms": names, "undone": undone})
        self._table.add(self._row(number, ended - self._ended))
        self._ended = ended

    @property
    def kept(self) -> list[dict[str, Any]]:
        """The evaluations of rounds that were not undone."""
        return [figures for figures in self.evaluations if not figures["undone"]]

    @property
    def best(self) -> int:
        """The best round of those that count, by the sample for selection; the first of equals."""
        return self.evaluations.index(max(self.kept, key=score))

    def note(self) -> str:
        """How good the last round is, for the line that shows the work in progress."""
        figure, value = alarms.judged_by(self.evaluations[-1])
        return f"{figure} {value:.2f} after round {len(self.evaluations) - 1}"

    def check_collapse(self, rounds_left: int) -> None:
        """Ends a run with rounds left that unlearns (`CollapseError`); one that is over is told."""
        if (collapse := alarms.collapse(self.kept)) is None:
            return
        if rounds_left:
            raise collapse
        log.warning("%s", collapse)

    def is_enough(self) -> bool:
        """Whether there is no use in another round."""
        merits = list(map(merit, self.evaluations))
        earlier, late = merits[:-PATIENCE], merits[-PATIENCE:]
        if self.target_met_by() is not None:
            return True
        if len(earlier) >= 2 and max(late) <= max(earlier):
            log.info("no better round among the last %d: the run ends", PATIENCE)
            return True
        if all(figures["undone"] for figures in self.evaluations[-MOST_UNDONE:]):
            log.warning("%d rounds in a row were undone: the run ends", MOST_UNDONE)
            return True
        return False

    def _row(self, number: int, took: float) -> dict[str, Any]:
        """What people see of a round."""
        figures = self.evaluations[number]
        shown = {title: practised(figures, name) for title, name in SHOWN.items()}
        if self.config.environment.held_back is not None:
            shown["held back"] = figures.get("held_back/success_rate")
            shown["and in two"] = figures.get("held_back/success_within_2_chains")
        if "of_optimum" in figures:
            shown["of optimum"] = figures["of_optimum"]
        unmet = [TITLES.get(name, name) for name in self._unmet(figures)]
        notes = [*figures["alarms"], *([f"unmet: {', '.join(unmet)}"] if unmet else [])]
        return {"round": number, **shown, "took": f"{took:.0f} s", "notes": "; ".join(notes)}

    def target_met_by(self) -> int | None:
        """The last round that counts and meets every figure of the target; the clone is round 0."""
        rounds = enumerate(self.evaluations) if self.config.target else ()
        met = (n for n, figures in rounds if not figures["undone"] and not self._unmet(figures))
        return max(met, default=None)

    def _unmet(self, figures: dict[str, Any]) -> list[str]:
        """The figures that are not as good as the target asks, or could not be computed."""

        def meets(name: str, bound: float) -> bool:
            figure = practised(figures, name)
            return figure is not None and (figure <= bound if name in AT_MOST else figure >= bound)

        return [
            name for name, bound in (self.config.target or {}).items() if not meets(name, bound)
        ]

    def chosen(self) -> int:
        """The round whose actor is the result."""
        if (met := self.target_met_by()) is not None:
            return met
        if self.config.selection is not None:
            return self.best
        merits = list(map(merit, self.evaluations))
        best = max(range(1, len(merits)), key=merits.__getitem__, default=0)
        if merits[best] < merits[0]:
            return 0
        tells_success = merits[best][0] > -math.inf
        return best if tells_success else self._last_as_good_as(best)

    def _last_as_good_as(self, best: int) -> int:
        """The last round that the returns of the same episodes do not tell from the best one.

        Where nothing but returns tells rounds apart, the best of them owes that to luck as well:
        in Blackjack rounds that have .87 and .99 of the optimum earned as much in 500 episodes.
        """

        def returns(number: int) -> np.ndarray:
            folder = self.run.path(f"round_{number}/evaluation/trajectories")
            return np.array([played.episode_return for played in read_trajectories(folder)])

        later, of_best = range(len(self.evaluations) - 1, best, -1), returns(best)
        return next((n for n in later if paired_interval(of_best, returns(n))[1] >= 0), best)

    def gather(self, number: int) -> None:
        """Puts what people look for first at the top of the run's folder, from a round.

        RUN/actor and RUN/critic are links: `manifests.origin` says what a copy may be.
        """
        sources = {
            "episodes_before.json": "round_0/evaluation/episodes.json",
            "episodes.json": f"round_{number}/evaluation/episodes.json",
            "values.json": "round_1/critic/values.json",
        }
        if not distributed.is_main():
            return
        for name, source in sources.items():
            if (file := self.run.directory / source).is_file():
                verify_if_described(file, AGAIN)
                write_with_manifest(self.run.path(name), file.read_bytes(), {})
        trained = f"round_{number}/simpo" if number else "warm_start"
        # What was there before any round is what the critic of the first one values.
        for name, source in (("actor", trained), ("critic", f"round_{max(1, number)}/critic")):
            there = (self.run.directory / source / name).is_dir()  # else it was given, or is none
            stand_for(self.run.path(name), f"{source}/{name}" if there else None)

    def summary(self) -> dict[str, Any]:
        """What `summary.json` holds: the figures before and after, and those of every round.

        All processes ask for it together.
        """
        from lactchain.data.base_models import described

        chosen = self.chosen()
        before, after = self.evaluations[0], self.evaluations[chosen]
        first = self.critic_summaries[0]
        stages = self.actor_summaries + self.critic_summaries
        return {
            "seed": self.config.run.seed,
            "success_rate_before": before.get("success_rate"),
            "success_rate_after": after.get("success_rate"),
            **_present(after, ("success_rate_low", "success_rate_high", *FIGURES_OF_CHANCE)),
            "success_within_2_chains": after.get("success_within_2_chains"),
            "mean_chain_length": after["mean_chain_length"],
            "actions_over_shortest": after.get("actions_over_shortest"),
            **_present(after, FIGURES_OF_PARTS),
            "invalid_rate_after": after.get("sampled_invalid_rate", after["invalid_rate"]),
            **{f"round_1/{name}": first.get(name) for name in OF_FIRST_CRITIC},
            "num_pairs": sum(stage.get("num_pairs", 0) for stage in stages),
            "num_cloned_chains": sum(stage.get("num_examples", 0) for stage in stages),
            # Actions that were played to learn from; evaluations do not count, for any agent.
            "num_env_steps": sum(stage.get("num_env_steps", 0) for stage in stages),
            **self.run.worked(),
            "num_rounds": len(self.evaluations) - 1,
            "target_met": self.target_met_by() is not None,
            "round": chosen,
            "actor": after["actor"],
            "critic": after["critic"],
            "bases": {name: described(model) for name, model in self.bases.items()},
            "alarms": alarms.first_rounds([figures["alarms"] for figures in self.evaluations]),
            "rounds": [
                {"round": number}
                | {name: figures.get(name) for name in FIGURES_OF_ROUNDS}
                | _present(figures, FIGURES_OF_PARTS + FIGURES_OF_CHANCE)
                for number, figures in enumerate(self.evaluations)
            ],
        }


def merit(figures: Mapping[str, Any]) -> tuple[float, float]:
    """What rounds are compared by: success in per cent, and among equals the return.

    Above `NEARLY_ALWAYS` all are equals where no shortest paths are known, so that episodes are
    drawn: what is left there is luck, while the return goes on to tell good from better (in Wordle
    a cautious player never fails).

    With chance, the share of the optimum, which knows no luck, stands for success. What could not
    be computed is the worst; a summary that was read again has None in the place of NaN.
    """

    def known(figure: float | None) -> float:
        return -math.inf if figure is None or math.isnan(figure) else figure

    success = known(figures.get("of_optimum", practised(figures, "success_rate")))
    if "of_optimum" not in figures and known(figures.get("actions_over_shortest")) == -math.inf:
        success = min(success, NEARLY_ALWAYS)
    return round(success, 2), known(practised(figures, "episode_return"))


def _present(figures: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: figures[name] for name in names if name in figures}
