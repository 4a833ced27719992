"""What the model cards of each stage say: see `lactchain.models.model_cards`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lactchain import distributed
from lactchain.config import load
from lactchain.data.evaluations import read_episodes
from lactchain.environments.language import make_language_env
from lactchain.files import follow, read_json
from lactchain.manifests import RUN_FILE
from lactchain.models.actor import POLICY_FILE
from lactchain.models.adapters import ADAPTER_FILES
from lactchain.models.model_cards import Base, Card, code, figures_of, section_of
from lactchain.run import Run
from lactchain.settings import ActorConfig, EnvironmentConfig
from lactchain.stages.card_figures import (
    critic_figures,
    invalid_figures,
    loss_figures,
    success_figures,
    throws_no_dice,
)

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

    from lactchain.stages.export import ExportConfig
    from lactchain.stages.run_pipeline import RunPipelineConfig
    from lactchain.stages.token_values import TrainValuesConfig
    from lactchain.stages.train_bc import BehaviorConfig, TrainBCConfig
    from lactchain.stages.train_critic import TrainCriticConfig
    from lactchain.stages.train_simpo import TrainSimPOConfig

Summary = dict[str, Any]

NOT_EVALUATED = "Not evaluated: a training measures no success. `lactchain evaluate` does."
OTHER_SEEDS = "They do not tell how far another seed of the training may lead."
WITH_DICE = "Intervals are Wilson's for shares and the bootstrap's, over episodes, for all else."
WITHOUT_DICE = (
    "The world throws no dice and every start state was played: figures of start states are exact, "
    "and the interval of the sampled completions is Wilson's."
)
LONGEST_TEXT = 300


def write(
    card: Callable[[Any, Run, Summary], Card], config: Any, run: Run, summary: Summary
) -> None:
    """Writes the card of what a stage has saved; rank 0 does."""
    if distributed.is_main():
        card(config, run, summary).write()


# --- policies ------------------------------------------------------------------------------------


def of_clone(config: TrainBCConfig, run: Run, summary: Summary) -> Card:
    """The card of an actor that has cloned."""
    source = settings(run)["trajectories"] or settings(run)["pairs"]
    told = f"those of {code(source)}" if source else scripted(config.behavior)
    data = f"Behaviour cloning of {summary['num_examples']:,} completions: {told}."
    return policy(config.actor, config.environment, run, Base.of(config.actor.model), data)


def of_simpo(config: TrainSimPOConfig, run: Run, summary: Summary) -> Card:
    """The card of an actor that SimPO has trained."""
    source = f"read from {code(settings(run)['pairs'])}"
    if config.pairs is None:
        source = (
            f"best over worst of {config.preferences.num_candidates} completions of its own to "
            f"each state, ranked by {code(summary['ranked_by'])}"
        )
    data = f"SimPO on {summary['num_pairs']:,} preference pairs, {source}."
    return policy(config.actor, config.environment, run, Base.of(config.actor.model), data)


def of_pipeline(config: RunPipelineConfig, run: Run, summary: Summary) -> Card:
    """The card of the actor that a pipeline ends with, as it was evaluated."""
    data = (
        f"Rounds of critic and SimPO, {summary['num_rounds']} in all; number {summary['round']} is "
        f"the result. {summary['num_pairs']:,} preference pairs, best over worst of "
        f"{config.simpo.preferences.num_candidates} completions to each state; "
        f"{summary['num_env_steps']:,} actions were played for that."
    )
    if config.warm_start is not None:
        count, told = summary["num_cloned_chains"], scripted(config.warm_start.behavior)
        data = f"A warm start on {count:,} completions: {told}. {data}"
    base = run.path("base/actor") if config.tiny is not None else config.actor.model
    drawn, episodes = config.evaluation.num_starts, read_episodes(run.path("episodes.json"))
    exactly = drawn is None and throws_no_dice(config.environment)
    figures = [
        *success_figures(config.environment, episodes, exactly),
        *invalid_figures(config, summary["invalid_rate_after"]),
    ]
    how_sure = WITHOUT_DICE if exactly else WITH_DICE
    starts = "every start state" if drawn is None else f"a sample of {drawn:,} start states"
    about = (
        f"Greedy, free decoding from {starts}; invalid completions are counted among "
        "sampled ones. Before the first round the success rate was "
        f"{summary['success_rate_before']:.4g}. {how_sure} {OTHER_SEEDS}"
    )
    return policy(config.actor, config.environment, run, Base.of(base), data, figures, about)


def policy(
    actor: ActorConfig,
    environment: EnvironmentConfig,
    run: Run,
    base: Base,
    data: str,
    figures: list[EvalResult] | None = None,
    about_figures: str = NOT_EVALUATED,
) -> Card:
    """The card of RUN/actor."""
    folder, text = follow(run.path("actor")), an_observation(environment)
    return Card(
        folder=folder,
        what=(
            "A policy: a language model that reads a text about the state of "
            f"{code(environment.id)} and answers with a list of actions, all of which are played "
            "before it is asked again."
        ),
        base=base,
        facts={
            "base": base.described,
            "trained": trained(folder),
            **world(environment, run),
            "instruction": code(settings(run)["actor"]["strategy"]),
            **origin(run),
        },
        data=data,
        figures=tuple(figures or ()),
        about_figures=about_figures,
        load=(
            f"import lactchain\n\npolicy = lactchain.load_policy({folder.as_posix()!r})\n"
            f"(completion,) = policy.act([{text!r}], seeds=[0])"
        ),
        limits=(
            *limits(environment),
            "It may answer with what is no legal list, which the world refuses; "
            '`decoding="constrained"` as an argument of `load_policy` rules that out.',
        ),
    )


# --- values --------------------------------------------------------------------------------------


def of_critic(config: TrainCriticConfig, run: Run, summary: Summary) -> Card:
    """The card of a critic, beside the returns and the exact values that it was measured by."""
    critic, environment = config.critic, config.environment
    folder, text = run.path("critic"), an_observation(environment)
    player = config.actor.adapter or config.actor.model
    base = Base.of(critic.model)
    of_states = critic.mode == "value"
    valued = "a state" if of_states else "a completion to a state"
    asked = f"[{text!r}]" if of_states else f"[{text!r}], [{a_completion(environment)!r}]"
    return Card(
        folder=folder,
        what=(
            f"A critic: an embedding model with a head that tells what {valued} of "
            f"{code(environment.id)} is worth to the policy whose episodes it has learnt from."
        ),
        base=base,
        facts={
            "base": base.described,
            "trained": trained(folder),
            **world(environment, run),
            "value": f"return, discounted by {critic.gamma:g} per {critic.discount_per}",
            "policy": f"{code(player)}, {config.actor.decoding} decoding",
            **origin(run),
        },
        data=f"{summary['num_episodes']:,} episodes: {played(config, run)}.",
        figures=tuple(critic_figures(config, run, summary)),
        about_figures=(
            "r2 is the share of the variance that is explained. Intervals are the bootstrap's, "
            f"over episodes, or over states where those are counted. {OTHER_SEEDS}"
        ),
        load=(
            f"import lactchain\n\ncritic = lactchain.load_critic({folder.as_posix()!r})\n"
            f"values = critic.values({asked})"
        ),
        limits=(
            *limits(environment),
            "It values that one policy. A better or worse one earns other returns.",
            f"Of texts longer than {critic.max_length} tokens it reads the end.",
        ),
    )


def of_values(config: TrainValuesConfig, run: Run, summary: Summary) -> Card:
    """The card of token values."""
    folder, base = run.path("values"), Base.of(config.actor.model)
    return Card(
        folder=folder,
        what=(
            f"Values of tokens, by {config.method.upper()}: a language model with heads for "
            "Q(s, token) and V(s), which guide what a policy answers to "
            f"{code(config.environment.id)}."
        ),
        base=base,
        facts={
            "base": base.described,
            "trained": trained(folder),
            **world(config.environment, run),
            "value": f"return, discounted by {config.settings.gamma:g} per token",
            **origin(run),
        },
        data=(
            f"{summary['num_decisions']:,} decisions, {summary['num_agent_tokens']:,} tokens of "
            f"the agent, from {code(settings(run)['trajectories'])}."
        ),
        figures=tuple(loss_figures(config, summary)),
        about_figures=(
            "Losses of a training tell little. How well the values guide a policy says "
            f"`lactchain evaluate --actor.values {folder.as_posix()}`."
        ),
        load=(
            f"import lactchain\n\nvalues = lactchain.load_values({folder.as_posix()!r})\n"
            "print(values.meaning)"
        ),
        limits=(
            *limits(config.environment),
            "They have seen what the recorded policies did; of other tokens they know little.",
            "They belong to the tokenizer of their base: a policy with another one is refused.",
        ),
    )


# --- exports -------------------------------------------------------------------------------------


def of_export(config: ExportConfig, run: Run, summary: Summary) -> Card:
    """The card of an exported actor: what that of the actor says, and what became of the update."""
    actor, folder = config.actor, run.path("model")
    source = Path(actor.adapter or actor.model)
    base = Base.of(actor.model)
    kept = summary.get("share_of_update_kept")
    load = (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f"where = {folder.as_posix()!r}  # or its name on the hub\n"
        'model = AutoModelForCausalLM.from_pretrained(where, dtype="auto")\n'
        "tokenizer = AutoTokenizer.from_pretrained(where)"
    )
    if (folder / POLICY_FILE).is_file():  # it says how the actor was asked in its training
        load = f"import lactchain\n{load}\npolicy = lactchain.load_policy(where)"
    rounded = "" if kept is None else f"; {kept:.4g} of what was learnt is left after rounding"
    return Card(
        folder=folder,
        what=f"{code(source)} as one model for any engine, in {config.dtype}.",
        base=base,
        facts={
            "made from": code(source),
            "type": f"{config.dtype}{rounded}",
            "parameters": f"{summary['num_parameters']:,}",
            **origin(run),
        },
        data=section_of(source, "Data") or f"{code(source)} does not say.",
        figures=figures_of(source),
        about_figures=(
            f"Measured before the export, on {code(source)}: rounding may change them. "
            "`lactchain evaluate --actor.model` measures anew."
        ),
        load=load,
        limits=(
            section_of(source, "Limits").removeprefix("- ") or "Nobody has written them down.",
        ),
    )


# --- what several cards say ----------------------------------------------------------------------


def world(environment: EnvironmentConfig, run: Run) -> dict[str, str]:
    """The rows of a card that tell what is read and answered."""
    grammar = make_language_env(environment).grammar
    names = ", ".join(map(code, grammar.action_names)) or "any text"
    arguments = settings(run)["environment"]["kwargs"]
    return {
        "environment": " ".join(map(code, filter(None, (environment.id, arguments)))),
        "reads": f"texts such as {code(an_observation(environment))}",
        "actions": f"{names}; {grammar.max_chain_length} at most in a list",
    }


def an_observation(environment: EnvironmentConfig) -> str:
    """The text of a start state, cut where it is long."""
    observation, _ = make_language_env(environment).reset(seed=0)
    return observation[:LONGEST_TEXT]


def a_completion(environment: EnvironmentConfig) -> str:
    """The legal completion of the first action."""
    grammar = make_language_env(environment).grammar
    return grammar.render([0]) if grammar.action_names else "any text"


def limits(environment: EnvironmentConfig) -> tuple[str, str]:
    """What holds for all weights that were trained in one world."""
    return (
        f"It knows {code(environment.id)} with these arguments, in these words. Elsewhere its "
        "answers mean nothing.",
        "It was trained for research, with one seed, and is no assistant.",
    )


def trained(folder: Path) -> str:
    """Which weights were, as the folder shows."""
    if not (folder / ADAPTER_FILES[0]).is_file():
        return "all weights"
    return f"a LoRA adapter of rank {read_json(folder / ADAPTER_FILES[0])['r']}"


def scripted(behavior: BehaviorConfig) -> str:
    """What is cloned where nothing recorded is."""
    share = f"{behavior.competent_fraction:.0%}"
    return f"scripted, {share} of them by a policy that knows the world, the others random"


def played(config: TrainCriticConfig, run: Run) -> str:
    """Whose episodes a critic has learnt from."""
    if config.trajectories is not None:
        return f"read from {code(settings(run)['trajectories'])}"
    return f"played by {code(config.actor.adapter or config.actor.model)}"


def settings(run: Run) -> dict[str, Any]:
    """Those of a run as its folder shows them: without secrets."""
    return load(run.path("config.yaml"))


def origin(run: Run) -> dict[str, str]:
    """Which run made it."""
    described, seed = read_json(run.path(RUN_FILE)), settings(run)["run"]["seed"]
    return {
        "made by": f"the run {code(run.directory)}, whose `config.yaml` has every setting",
        "seed": str(seed),
        "commit": code(described["git_commit"] or "none: not a clone"),
    }
