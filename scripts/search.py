r"""Searches hyper-parameters and architectures: evolution, random search, or Optuna's TPE.

Classic agents (--ppo, --dqn, --ddpg) or language actors trained by SimPO (--language). Every
environment step of every member is counted, those of the evaluations that select among them.
Writes RUN/lineage.jsonl (who came from whom by which mutation with what gain) or RUN/trials.jsonl,
RUN/best/ (classic agents: the member that is returned, as it was evaluated) and RUN/summary.json.
A generation or trial that was cut is done again, and comes out the same.

Departures from AgileRL's evolution: see lactchain/search/evolution.py.

    python scripts/search.py --config configs/search/cartpole.yaml
    python scripts/search.py --config configs/search/cartpole.yaml --method random \
        --run.run_dir runs/random_search
    python scripts/search.py --config configs/search/gridworld_tiny.yaml
"""

import evaluate
import train_simpo

from lactchain.console import figures
from lactchain.jobs import EvaluateConfig
from lactchain.process import launch
from lactchain.search.settings import SearchConfig


def main(config: SearchConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.inspection.report import write_report
    from lactchain.search.runs import search

    if config.dry_run:
        return print_budget(*language_stages(config))
    check_budget(*language_stages(config))
    stages = {"train": train_simpo.main, "evaluate": evaluate.main}
    summary = search(config, stages)
    write_report(config.run.run_dir)
    figures("Search", summary)
    return summary


def language_stages(config: SearchConfig) -> list:
    """What a member goes through in a generation, if it is a language model."""
    if config.language is None:
        return []
    train = config.language.train
    judge = EvaluateConfig(
        environment=train.environment, actor=train.actor, evaluation=config.language.evaluation
    )
    return [train, judge]


if __name__ == "__main__":
    launch(main, SearchConfig)
