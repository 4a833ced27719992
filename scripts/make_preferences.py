r"""Makes preference pairs: K answers of the actor to each state, played, ranked, best over worst.

Reads the actor's weights and --critic if given (without one, answers are ranked by their return);
writes RUN/pairs/*.parquet. The founding text gives each state twice; K is
--preferences.num_candidates. What is dropped is counted by reason.

    python scripts/make_preferences.py --config configs/make_preferences/gridworld_tiny.yaml
    accelerate launch --config_file configs/accelerate/multi_gpu.yaml \
        scripts/make_preferences.py --config configs/make_preferences/gridworld_mistral7b.yaml
"""

from lactchain.console import figures
from lactchain.jobs import MakePreferencesConfig
from lactchain.process import launch, seed_everything
from lactchain.run import Run


def main(config: MakePreferencesConfig) -> dict:
    from lactchain.budget import check_budget, print_budget
    from lactchain.data.preference_data import make_preferences

    if config.dry_run:
        return print_budget(config)

    with Run.of(config) as run:
        if run.finished:
            return run.summary
        check_budget(config)
        seed_everything(config.run.seed, config.run.threads)
        _, summary = make_preferences(
            config.environment,
            config.actor,
            config.critic,
            config.preferences,
            config.run.seed,
            run,
        )
        run.finish(summary)
    figures("Preference pairs", summary)
    return summary


if __name__ == "__main__":
    launch(main, MakePreferencesConfig)
