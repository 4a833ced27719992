"""The pipeline over seeds, and its controls: is the gain the recipe's?

    python benchmarks/pipeline.py --seeds 0 1 2
    python benchmarks/pipeline.py --config configs/run_pipeline/frozen_lake_tiny.yaml --seeds 0
    python benchmarks/pipeline.py --seeds 0 --controls

Each run is a run folder under --folder, and is not done again when it is there. The controls, from
the same warm start, with as many updates:

- cloning continued: more scripted behaviour, no reinforcement;
- NLL on `chosen` only: the same pairs, but the rejected completions are not used;
- ranking by return: pairs without a critic, a chain is worth what it earned itself.

With --write the table is appended to benchmarks/RESULTS_ARCHIVE.md.
"""

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
COLUMNS = (
    "success_rate_before",
    "success_rate_after",
    "success_within_2_chains",
    "mean_chain_length",
    "actions_over_shortest",
    "invalid_rate_after",
    "critic_r2",
    "num_rounds",
    "wall_seconds",
)
LAUNCHER = ("accelerate", "launch", "--config_file", "configs/accelerate/cpu_2_processes.yaml")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="configs/run_pipeline/tiny.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", default="runs/benchmarks", help="where the runs go")
    parser.add_argument("--controls", action="store_true", help="run the controls as well")
    parser.add_argument("--write", action="store_true", help="append to RESULTS_ARCHIVE.md")
    options = parser.parse_args()
    folder = Path(options.folder) / Path(options.config).stem
    rows = []
    for seed in options.seeds:
        recipe = folder / f"recipe_{seed}"
        rows.append(row("recipe", run_pipeline(options.config, recipe, seed), seed))
        if options.controls:
            rows += controls(options.config, folder, recipe, seed)
    lines = markdown(rows)
    sys.stdout.write("\n".join(lines) + "\n")
    if options.write:
        append(options, lines)


def controls(config: str, folder: Path, recipe: Path, seed: int) -> list[dict]:
    """The rows of the three controls of one seed."""
    same_rounds = ["--num_rounds", str(summary(recipe)["num_rounds"]), "--target", "{}"]
    nll = ["--simpo.simpo.preference_weight", "0"]
    by_return = ["--simpo.preferences.rank_by", "return"]
    return [
        row("cloning continued", continue_cloning(config, folder, recipe, seed), seed),
        row(
            "NLL on chosen only",
            run_pipeline(config, folder / f"nll_{seed}", seed, *same_rounds, *nll),
            seed,
        ),
        row(
            "ranking by return",
            run_pipeline(config, folder / f"by_return_{seed}", seed, *same_rounds, *by_return),
            seed,
        ),
    ]


def run_pipeline(config: str, run_dir: Path, seed: int, *more: str) -> dict:
    """The summary of a pipeline run, which is made or continued if need be."""
    if not (run_dir / "summary.json").exists():
        launch(
            "run_pipeline", "--config", config, "--run.run_dir", run_dir, "--run.seed", seed, *more
        )
    return summary(run_dir)


def continue_cloning(config: str, folder: Path, recipe: Path, seed: int) -> dict:
    """Figures of the warm-started actor after as many more updates as the recipe's SimPO took."""
    cloned, evaluated = folder / f"cloning_{seed}", folder / f"cloning_{seed}_evaluation"
    warm = load_yaml(recipe / "warm_start" / "config.yaml")
    updates = sum(simpo_updates(path) for path in recipe.glob("round_*/simpo"))
    warm["run"]["run_dir"] = str(cloned)
    warm["actor"]["model"] = str(recipe / "warm_start" / "actor")
    warm["training"] |= {"max_steps": updates}
    if not (cloned / "summary.json").exists():
        launch("train_bc", "--config", save_yaml(folder / f"cloning_{seed}.yaml", warm))
    evaluation = load_yaml(recipe / "round_0" / "evaluation" / "config.yaml")
    evaluation["run"]["run_dir"] = str(evaluated)
    evaluation["actor"]["model"] = str(cloned / "actor")
    if not (evaluated / "summary.json").exists():
        launch("evaluate", "--config", save_yaml(folder / f"evaluation_{seed}.yaml", evaluation))
    figures = summary(evaluated)
    return figures | {
        "success_rate_before": summary(recipe)["success_rate_before"],
        "success_rate_after": figures["success_rate"],
        "invalid_rate_after": figures["sampled_invalid_rate"],
    }


def simpo_updates(run_dir: Path) -> int:
    """Optimiser steps that a SimPO stage took."""
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return max(record["step"] for record in records)


def launch(script: str, *arguments: object) -> None:
    """Runs a script on two processes."""
    bin_folder = Path(sys.executable).parent
    command = [str(bin_folder / LAUNCHER[0]), *LAUNCHER[1:], f"scripts/{script}.py"]
    subprocess.run([*command, *map(str, arguments)], cwd=ROOT, check=True)


def summary(run_dir: Path) -> dict:
    """What a finished run reports."""
    return json.loads((ROOT / run_dir / "summary.json").read_text())


def load_yaml(path: Path) -> dict:
    """A run's configuration."""
    import yaml

    return yaml.safe_load((ROOT / path).read_text())


def save_yaml(path: Path, settings: dict) -> Path:
    """Writes a configuration."""
    import yaml

    (ROOT / path).write_text(yaml.safe_dump(settings))
    return path


def row(name: str, figures: dict, seed: int) -> dict:
    """One line of the table."""
    return {"run": name, "seed": seed} | {column: figures.get(column) for column in COLUMNS}


def markdown(rows: list[dict]) -> list[str]:
    """The table."""
    lines = [f"| {' | '.join(rows[0])} |", f"|{'---|' * len(rows[0])}"]
    for entry in rows:
        cells = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in entry.values())
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def append(options: argparse.Namespace, lines: list[str]) -> None:
    """Adds the table to RESULTS_ARCHIVE.md, with what it takes to make it again."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    command = f"python benchmarks/pipeline.py --config {options.config} --seeds " + " ".join(
        map(str, options.seeds)
    )
    heading = f"## Pipeline, {Path(options.config).stem}, {datetime.date.today()}"
    about = f"Commit {commit}, `{command}{' --controls' if options.controls else ''}`, 2 cores."
    with open(ROOT / "benchmarks" / "RESULTS_ARCHIVE.md", "a", encoding="utf-8") as file:
        file.write("\n".join(["", heading, "", about, "", *lines, ""]))


if __name__ == "__main__":
    main()
