"""Which loss teaches a policy most from the same completions: nine of them, on one budget.

In each world a tiny actor is cloned and a critic trained by the preset `tiny`, and in `smollm2`
SmolLM2 by its own, whose bound on the distance from the sampler no loss has here. The actor's K
completions to the states of its first round are valued by that critic once, and kept. Each loss
then trains the same actor on them, for the same number of updates and states per update, and the
actor is evaluated as a pipeline evaluates a round. Losses of pairs see the best and the worst
completion, the others all K.

    python benchmarks/losses.py --sweep                      # settings, by seeds 100 to 102
    python benchmarks/losses.py --seeds 0 1 2                # five worlds, by the settings chosen
    python benchmarks/losses.py --worlds smollm2 --num_epochs 1 --learning_rate 1e-3

Settings are swept in the order that SimPO's authors advise: the learning rate first, then the
loss's own. FOLDER/results.jsonl has a line for each training, so that the same command goes on
where it was.
"""

import argparse
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measuring import command_line, markdown, shown, student, summary
from pretrained import study_of
from worlds import BUILT_IN, begun

from lactchain.config.settings import GuidedActorConfig, RunConfig, recast
from lactchain.data.candidates import sample_candidates
from lactchain.data.episodes import sampled_states
from lactchain.data.preferences import Candidates, RankedCompletion, rank_completions
from lactchain.data.rollouts import Rollouts
from lactchain.functional.random_streams import derive_seed
from lactchain.models.actor import load_player, policy_file
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import load_actor
from lactchain.models.prompting import PromptTemplate, encode_completions
from lactchain.runs.console import under_way
from lactchain.runs.process import seed_everything
from lactchain.runs.run import Run
from lactchain.stages import evaluate, make_preferences
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.stages.rounds import evaluation
from lactchain.stages.train_simpo import TrainSimPOConfig
from lactchain.storage.files import append_json_lines, read_json_lines
from lactchain.trainers.base import save_result, train, training_arguments
from lactchain_extras.preference_losses import LOSSES, PreferenceLossTrainer, ScoredRow

TABLE_WORLDS = (
    "gridworld_4x4", "gridworld_5x5", "frozen_lake_8x8", "slippery_lake_chains_of_3", "words",
)  # fmt: skip
"""Worlds in which a clone by the preset leaves something to learn."""
PRETRAINED = "smollm2"
SWEEP_WORLDS, SWEEP_SEEDS = ("gridworld_4x4",), (100, 101, 102)
RATES = (2e-3, 4e-3, 8e-3)
FACTORS = (0.3, 3.0)
"""What a sweep multiplies the settings of a loss by."""
CLONING = ("cloning", "weighted_cloning")
"""They need no further likelihood of the best beside them."""

FIGURES = ("success_rate", "success_within_2_chains", "sampled_invalid_rate", "retrieval_skill")
KEY = ("world", "seed", "num_epochs", "loss", "learning_rate", "nll_weight", "settings")

Line = dict[str, Any]


class Course:
    """One world with one seed: what all losses of it begin from.

    Attributes:
        config: of the round's training by SimPO, whose counts all losses share.
    """

    evaluated_before = "pipeline/round_0/evaluation"

    def __init__(self, given: argparse.Namespace, world: str, seed: int) -> None:
        self.folder = given.folder.resolve() / world / str(seed)
        self.world, self.seed, self.num_epochs = world, seed, given.num_epochs
        self._pipeline, self.config = self._begun(given)
        self.rollouts = Rollouts(self.config.environment)

    def _begun(self, given: argparse.Namespace) -> tuple[RunPipelineConfig, TrainSimPOConfig]:
        return begun(self.world, self.folder / "pipeline", self.seed)

    def before(self) -> Line:
        """The figures of the actor that all begin from."""
        found = summary(self.folder / self.evaluated_before)
        nothing = {"gains/chosen": 0.0, "gains/rejected": 0.0, "cpu_seconds": 0.0}
        return {key: found.get(key) for key in FIGURES} | nothing

    def candidates(self) -> tuple[list[str], list[list[RankedCompletion]]]:
        """What is asked where a pair can be made, and all distinct completions, best first."""
        file = self.folder / "candidates.pickle"
        if not file.exists():
            file.write_bytes(pickle.dumps(self._sampled()))
        sampled: list[Candidates] = pickle.loads(file.read_bytes())  # noqa: S301  - our own
        least = self.config.preferences.min_margin
        ranked = [rank_completions(state, i, least) for i, state in enumerate(sampled)]
        good = [i for i, (_, why_not) in enumerate(ranked) if not why_not]
        return [sampled[i].observation for i in good], [ranked[i][0] for i in good]

    def _sampled(self) -> list[Candidates]:
        config, rollouts = self.config, self.rollouts
        settings, seed = config.preferences, config.run.seed
        actor = load_player(config.actor, rollouts.env.grammar)
        more = make_preferences._explorers(actor, config.actor, rollouts.env.grammar)
        states = sampled_states(rollouts.env, settings.num_states, derive_seed(seed, "pairs"))
        critic = EmbeddingCritic.load(config.critic)
        return sample_candidates(
            actor, rollouts, states, settings.num_candidates, seed, critic, **more
        )

    def train(self, name: str, learning_rate: float, nll_weight: float, settings: Line) -> Line:
        """Trains by one loss; returns the figures of the actor."""
        self.candidates()  # whose cost is not the loss's
        config, loss, began = self.config, LOSSES[name], time.process_time()
        seed_everything(self.seed, 1)
        model, tokenizer = load_actor(config.actor, trainable=True)
        template = PromptTemplate(tokenizer, config.actor.strategy, self.rollouts.env.grammar)
        rows = list(self._rows(template, tokenizer, loss.takes_all))
        arm = f"{name}_{learning_rate:g}_{nll_weight:g}_{_short(settings)}_{self.num_epochs:g}"
        place = self.folder / arm
        training = replace(config.training, learning_rate=learning_rate, num_epochs=self.num_epochs)
        with Run.of(replace(config, run=RunConfig(run_dir=str(place), seed=self.seed))) as run:
            trainer = PreferenceLossTrainer(
                model,
                training_arguments(training, run.path("checkpoints"), self.seed),
                rows,
                tokenizer,
                partial(loss.function, **settings),
                nll_weight,
                run=run,
            )
            train(trainer)
            files = policy_file(config.actor, self.rollouts.env.grammar)
            save_result(trainer, place / "actor", files)
            last = [line for line in trainer.state.log_history if "nll_loss" in line][-1]
        spent = time.process_time() - began
        figures = self._evaluated(place)
        gains = {key: last[key] for key in ("gains/chosen", "gains/rejected", "nll_loss")}
        return figures | gains | {"cpu_seconds": spent, "num_rows": len(rows)}

    def _rows(
        self, template: PromptTemplate, tokenizer: Any, takes_all: bool
    ) -> Iterator[ScoredRow]:
        """Rows to train on; scores in units of their standard deviation over all chains."""
        texts, states = self.candidates()
        scale = np.std([c.score for ranked in states for c in ranked if c.is_chain])
        for prompt, ranked in zip(template.encode_batch(texts), states, strict=True):
            some = ranked if takes_all else [ranked[0], ranked[-1]]
            ids = encode_completions([c.action for c in some], tokenizer, "completion {}".format)
            kept = [i for i, tokens in enumerate(ids) if tokens]
            yield {
                "prompt_ids": prompt,
                "completions": [ids[i] for i in kept],
                "scores": [some[i].score / scale for i in kept],
            }

    def _evaluated(self, place: Path) -> Line:
        trained = {"adapter" if self.config.actor.lora else "model": str(place / "actor")}
        actor = replace(self.config.actor, **trained)
        greedy = recast(actor, GuidedActorConfig, decoding="free", temperature=0.0)
        stage = evaluation(self._pipeline, greedy)
        found = evaluate.main(replace(stage, run=RunConfig(run_dir=str(place / "evaluation"))))
        return {key: found.get(key) for key in FIGURES + ("actions_over_shortest", "of_optimum")}


class PretrainedCourse(Course):
    """SmolLM2 in words, behind a clone that was stopped halfway (`pretrained.py`)."""

    evaluated_before = "warm start, greedy"

    def _begun(self, given: argparse.Namespace) -> tuple[RunPipelineConfig, TrainSimPOConfig]:
        study = study_of(self.seed, given.chains, self.folder, ["--run.threads", "1"])
        actor = study.warm_start()
        greedy = replace(recast(actor, GuidedActorConfig), temperature=0.0)
        study.stage(self.evaluated_before, evaluate.main, evaluation(study.config, greedy))
        study.train_critic(actor)
        config = study.improvement(actor, "recipe")
        return study.config, replace(config, run=RunConfig(seed=self.seed))


def course(given: argparse.Namespace, world: str, seed: int) -> Course:
    """What a world's losses begin from."""
    return (PretrainedCourse if world == PRETRAINED else Course)(given, world, seed)


class Results:
    """Lines of a file, each a training that is not done again."""

    def __init__(self, file: Path) -> None:
        self.file, self.lines = file, read_json_lines(file) if file.exists() else []

    def of(self, course: Course, name: str, rate: float, nll_weight: float, settings: Line) -> Line:
        """The line of a training, which is done now if it was not yet."""
        key = (course.world, course.seed, course.num_epochs, name, rate, nll_weight, settings)
        return self._made(key, lambda: course.train(name, rate, nll_weight, settings))

    def before(self, course: Course) -> Line:
        """The line of the actor that all begin from."""
        return self._made((course.world, course.seed, 0, "before", 0.0, 0.0, {}), course.before)

    def _made(self, key: tuple[Any, ...], make: Callable[[], Line]) -> Line:
        asked = dict(zip(KEY, key, strict=True))
        for line in self.lines:
            if all(line[k] == v for k, v in asked.items()):
                return line
        line = asked | make()
        append_json_lines(self.file, [line])
        self.lines.append(line)
        print(_told(line), flush=True)
        return line


def main() -> None:
    """Sweeps, or trains and prints the tables."""
    parser = command_line(__doc__)
    parser.add_argument("--worlds", nargs="+", choices=[*BUILT_IN, PRETRAINED])
    parser.add_argument("--chains", type=int, default=520, help=f"that {PRETRAINED} clones")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmarks/losses"))
    parser.add_argument("--nll_weights", type=float, nargs="+", default=[0.0, 10.0])
    parser.add_argument("--num_epochs", type=float, default=4, help="of the completions")
    parser.add_argument("--learning_rate", type=float, help="of all, in the place of the sweep's")
    parser.add_argument("--sweep", action="store_true", help="choose settings by seeds 100 to 102")
    given = parser.parse_args()
    results = Results(given.folder / "results.jsonl")
    with under_way("Losses"):
        if given.sweep:
            worlds = given.worlds or SWEEP_WORLDS
            courses = [course(given, world, seed) for world in worlds for seed in SWEEP_SEEDS]
            for name in given.losses:
                for nll_weight in _nll_weights(name, given.nll_weights):
                    sweep(results, courses, name, nll_weight)
            return
        for world in given.worlds or TABLE_WORLDS:
            for seed in given.seeds:
                begun_there = course(given, world, seed)
                results.before(begun_there)
                for name in given.losses:
                    for nll_weight in _nll_weights(name, given.nll_weights):
                        rate, *more = chosen(results.lines, name, nll_weight)
                        results.of(begun_there, name, given.learning_rate or rate, *more)
    print("\n".join(report(results.lines, given.worlds or TABLE_WORLDS)))


def sweep(results: Results, courses: Sequence[Course], name: str, nll_weight: float) -> None:
    """Tries learning rates, then the loss's own settings one by one."""
    settings = dict(LOSSES[name].settings)
    tried = [(rate, nll_weight, settings) for rate in RATES]
    best = _best(results, courses, name, tried)
    for key, value in settings.items():
        changes = [{key: value * factor} for factor in FACTORS]
        tried = [best] + [(best[0], nll_weight, best[2] | change) for change in changes]
        best = _best(results, courses, name, tried)


def _best(
    results: Results, courses: Sequence[Course], name: str, tried: Sequence[tuple[Any, ...]]
) -> tuple[Any, ...]:
    def worth(arm: tuple[Any, ...]) -> float:
        return float(np.mean([goal(results.of(course, name, *arm)) for course in courses]))

    return max(tried, key=worth)


def goal(line: Mapping[str, Any]) -> float:
    """What settings are chosen by: success, and success within two completions."""
    return line["success_rate"] + line["success_within_2_chains"]


def chosen(lines: Sequence[Line], name: str, nll_weight: float) -> tuple[Any, ...]:
    """The best of what all seeds of the sweep have; else the middle rate, and the source's."""
    swept: dict[str, list[Line]] = {}
    for line in lines:
        if line["seed"] in SWEEP_SEEDS and _arm(line)[:2] == (name, nll_weight):
            arm = line["learning_rate"], line["settings"]
            swept.setdefault(repr(arm), []).append(line)
    whole = [of for of in swept.values() if {line["seed"] for line in of} == {*SWEEP_SEEDS}]
    if not whole:
        return RATES[1], nll_weight, dict(LOSSES[name].settings)
    best = max(whole, key=lambda of: float(np.mean([goal(line) for line in of])))[0]
    return best["learning_rate"], nll_weight, best["settings"]


def report(lines: Sequence[Line], worlds: Sequence[str]) -> list[str]:
    """A table for each world: means over seeds, and differences from SimPO at its highest rate."""
    found: list[str] = []
    for world in worlds:
        here = [x for x in lines if x["world"] == world and x["seed"] not in SWEEP_SEEDS]
        simpo = [line for line in here if _arm(line)[:2] == ("simpo", 10.0)]
        base = {line["seed"]: line for line in sorted(simpo, key=lambda of: of["learning_rate"])}
        rows = [
            [*_cells([line for line in here if _arm(line) == arm], base)]
            for arm in dict.fromkeys(map(_arm, here))
        ]
        heads = ["loss, NLL weight, rate, own", "seeds", "success", "within two", "less SimPO's"]
        heads += ["no chain", "skill", "chosen", "rejected", "CPU s"]
        found += ["", f"### {world}", "", *markdown(heads, rows)]
    return found


def _arm(line: Line) -> tuple[Any, ...]:
    settings = repr(line["settings"])
    return line["loss"], line["nll_weight"], line["learning_rate"], line["num_epochs"], settings


def _cells(lines: Sequence[Line], base: Mapping[int, Line]) -> Iterator[object]:
    name, nll_weight, rate, *_ = _arm(lines[0])
    yield f"{name}, {nll_weight:g}, {rate:g}, {_short(lines[0]['settings'])}"
    yield len(lines)
    for key in ("success_rate", "success_within_2_chains"):
        yield shown([line[key] for line in lines])
    paired = [goal(line) - goal(base[line["seed"]]) for line in lines if line["seed"] in base]
    mean, half = student(paired) if paired else (np.nan, np.nan)
    yield f"{mean / 2:+.3f} ± {half / 2:.3f}"
    for key in ("sampled_invalid_rate", "retrieval_skill", "gains/chosen", "gains/rejected"):
        yield f"{np.mean([line[key] for line in lines]):.3f}"
    yield f"{np.median([line['cpu_seconds'] for line in lines]):.0f}"


def _nll_weights(name: str, asked: Sequence[float]) -> Sequence[float]:
    return [0.0] if name in CLONING else asked


def _short(settings: Line) -> str:
    return "_".join(f"{value:.3g}" for value in settings.values()) or "plain"


def _told(line: Line) -> str:
    arm = f"{line['world']} {line['seed']} {line['loss']} {line['learning_rate']:g}"
    arm += f" nll {line['nll_weight']:g} {_short(line['settings'])}:"
    return arm + "".join(f" {key} {line[key]:.3f}" for key in FIGURES if line[key] is not None)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
