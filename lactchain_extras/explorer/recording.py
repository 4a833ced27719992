"""What each round of a pipeline leaves for people to look at: `inspections`.

Little of it is computed: the evaluation has played the greedy episodes and sampled the completions.
These are played, and the round's critic reads what they lead to.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from lactchain.config.settings import ActorConfig
from lactchain.data import parquet
from lactchain.data.chain_values import ChainWorth, is_known
from lactchain.data.episodes import sampled_starts
from lactchain.data.evaluations import read_episodes, read_values
from lactchain.data.exact_values import can_enumerate
from lactchain.data.preferences import read_pairs
from lactchain.data.rollouts import Rollouts
from lactchain.data.samples import SAMPLES
from lactchain.data.sources import read_trajectories
from lactchain.environments import chance
from lactchain.environments.exact import optimal_values
from lactchain.environments.language import LanguageEnv
from lactchain.environments.views import State, tabular_model
from lactchain.models.critic import EmbeddingCritic
from lactchain.models.loading import load_own_tokenizer
from lactchain.runs import distributed
from lactchain.runs.run import Run
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.storage.files import write_json
from lactchain.storage.manifests import write_manifest
from lactchain.types import Action, Discount, PreferencePair, Trajectory
from lactchain_extras.explorer.inspections import SCHEMAS, VERSION, is_inspection
from lactchain_extras.explorer.tables import as_utf8
from lactchain_extras.turns import log_turns

MAX_STATES = 1_000
"""So many start states are looked at, at most: of more, a sample."""

MAX_CANDIDATES = 8
"""So many sampled completions to each are kept beside those of pairs: the most probable ones."""

MAX_SOLVED = 3_000
"""States whose values are solved for at once, at most: a second or so."""

Row = dict[str, Any]

UNKNOWN: Row = {"value": None, "q": None, "advantage": None}


class Recorder:
    """Leaves an inspection of each round in the folder of a pipeline's run."""

    def __init__(self, config: RunPipelineConfig, run: Run) -> None:
        self.config, self.run = config, run
        self.rollouts = Rollouts(config.environment)

    def record(self, number: int, actor: ActorConfig, critic: str | None) -> None:
        """Writes the inspection of a round that was evaluated, unless it is there.

        Rank 0 does; the others go on.
        """
        folder = self.run.path(f"round_{number}/inspection")
        if not distributed.is_main() or is_inspection(folder):
            return
        stage, row_of = folder.parent, TokenTexts(load_own_tokenizer(actor)).row
        episodes = read_trajectories(stage / "evaluation/trajectories")
        greedy = [episodes[place] for place in self.asked]
        found = find_candidates([episode.observations[0] for episode in greedy], stage)
        places = [place for place, some in zip(self.asked, found, strict=True) for _ in some]
        candidates = [candidate for some in found for candidate in some]
        actions = [action for action, _ in candidates]
        states = [self.starts[place] for place in places]
        outcomes = self.rollouts.outcomes(states, actions, self.config.run.seed)
        worth = self._worth([*map(_first_decision, greedy), *outcomes], critic)
        known = zip(self.asked, greedy, self._known(stage), worth, strict=False)
        answers = [row_of(e.actions[0]) | answer_row(place, e) | k | w for place, e, k, w in known]
        rows, asked = [], zip(places, candidates, outcomes, worth[len(greedy) :], strict=True)
        for place, (action, counts), outcome, of_critic in asked:
            invalid = outcome.infos[1]["invalid_action"]
            found = {"reward": outcome.rewards[0], "invalid": invalid, "score": of_critic["q"]}
            rows.append(row_of(action) | {"state_id": place} | counts | found)
        write_tables(folder, self._meta(critic), answers=answers, candidates=rows)
        log_turns(self.config.run, number, answers)

    @cached_property
    def starts(self) -> list[State]:
        """All start states that are evaluated."""
        evaluation = self.config.evaluation
        return sampled_starts(self.rollouts.env, evaluation.num_starts, evaluation.sample)

    @cached_property
    def asked(self) -> list[int]:
        """The places of those that are looked at, the same in all rounds."""
        order = np.random.default_rng([self.config.run.seed]).permutation(len(self.starts))
        return sorted(order[:MAX_STATES].tolist())

    @cached_property
    def _optimal(self) -> Sequence[float | None]:
        settings, states = self.config.critic.config, [self.starts[place] for place in self.asked]
        values = best_values(self.rollouts.env, states, settings.gamma, settings.discount_per)
        return [None] * len(states) if values is None else values.tolist()

    def _meta(self, critic: str | None) -> Row:
        settings, home = self.config.critic.config, self.run.directory
        inside = critic is not None and Path(critic).is_relative_to(home)
        return {
            "asked": len(self.asked),
            "of": len(self.starts),
            "sampled": len(self.asked) < len(self.starts),
            "critic": Path(critic).relative_to(home).as_posix() if inside else critic,
            "gamma": settings.gamma,
            "discount_per": settings.discount_per,
        }

    def _known(self, stage: Path) -> list[Row]:
        """What is exactly known of each state that is looked at."""
        results = read_episodes(stage / "evaluation/episodes.json")
        file = stage / "critic/values.json"
        shortest = {state_text(result.state): result.shortest for result in results}
        policy: Mapping[str, float] = {}
        if file.is_file():  # the critic was measured
            values = read_values(file)
            policy = dict(zip(map(state_text, values.states), values.exact, strict=True))
        states = [state_text(self.starts[place]) for place in self.asked]
        return [
            {"optimal": best, "policy_value": policy.get(state), "shortest": shortest.get(state)}
            for state, best in zip(states, self._optimal, strict=True)
        ]

    def _worth(self, decisions: Sequence[Trajectory], folder: str | None) -> list[Row]:
        """What the critic in a folder makes of B single decisions: value, q and advantage."""
        if folder is None:
            return [UNKNOWN] * len(decisions)
        critic = EmbeddingCritic.load(folder)
        texts = [decision.observations[0] for decision in decisions]
        if critic.mode == "action_value":
            completions = [decision.actions[0].text for decision in decisions]
            return [UNKNOWN | {"q": q} for q in critic.values(texts, completions).tolist()]
        worth = ChainWorth(self.rollouts, critic, Discount(critic.gamma, critic.discount_per))
        states = [decision.infos[0]["state"] for decision in decisions]
        known = is_known(self.rollouts, states)
        _, scores = (worth.expected(states, decisions) if known else worth.of(decisions)).T
        columns = zip(worth.values(texts).tolist(), scores.tolist(), strict=True)
        return [{"value": value, "q": q, "advantage": q - value} for value, q in columns]


def best_values(
    env: LanguageEnv, states: Sequence[State], gamma: float, discount_per: str
) -> np.ndarray | None:
    """V* (B,) of B states: the greatest value of any policy of legal chains.

    None where it is not known, or costs too much: without an exact model, without a discount, or
    where chains cost something and there are too many of them, or of states.
    """
    if env.view.model is None or gamma == 1:
        return None
    model = tabular_model(env.env, env.view)
    if env.chain_cost == 0 and discount_per == "action":  # single actions are as good as any chain
        values = optimal_values(model, gamma)
    elif model.deterministic or (can_enumerate(env) and len(model.non_terminal) <= MAX_SOLVED):
        longest = env.grammar.max_chain_length
        values = chance.best_values(model, longest, gamma, discount_per, env.chain_cost)
    else:
        return None
    return values[[model.row(state) for state in states]]


class TokenTexts:
    """What the tokens of completions read as, one by one.

    Args:
        tokenizer: of the actor.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._text = cache(tokenizer.decode)  # most completions begin as others do

    def row(self, action: Action) -> Row:
        """A completion, its tokens, and how probable each of them was."""
        return {
            "completion": action.text,
            "tokens": self.split(action.token_ids),
            "probabilities": np.exp(action.logprobs).tolist(),
        }

    def split(self, token_ids: tuple[int, ...]) -> list[str]:
        """Texts that join to that of all tokens; of a character's tokens the last one has it."""
        pieces, before = [], ""
        for end in range(1, len(token_ids) + 1):
            text = self._text(token_ids[:end])
            whole = not text.endswith("\N{REPLACEMENT CHARACTER}") or end == len(token_ids)
            pieces.append(text[len(before) :] if whole else "")
            before = text if whole else before
        return pieces


def find_candidates(texts: Sequence[str], stage: Path) -> list[list[tuple[Action, Row]]]:
    """Completions to each of some texts, that a round has sampled, or made pairs of: `merge`."""
    sampled: defaultdict[str, list[Action]] = defaultdict(list)
    pairs: defaultdict[str, list[PreferencePair]] = defaultdict(list)
    if (folder := stage / "evaluation/samples").is_dir():  # none where num_samples is 0
        for sample in SAMPLES.read(folder):
            sampled[sample.observation].append(sample.action)
    if (folder := stage / "simpo/pairs").is_dir():
        for pair in read_pairs(folder):
            pairs[pair.prompt].append(pair)
    found = {text: merge(sampled[text], pairs[text]) for text in dict.fromkeys(texts)}
    return [found[text] for text in texts]


def merge(sampled: Iterable[Action], pairs: Sequence[PreferencePair]) -> list[tuple[Action, Row]]:
    """The different completions to a text: the likeliest ones, and all of pairs.

    Beside each is how often it was sampled, and whether it is the one or the other in a pair.
    """
    counts = Counter((action.text, action.token_ids) for action in sampled)
    first = {(action.text, action.token_ids): action for action in reversed([*sampled])}
    likeliest = sorted(first.values(), key=lambda action: (-sum(action.logprobs), action.text))
    chosen = {pair.chosen: pair.chosen_token_ids for pair in pairs}
    rejected = {pair.rejected: pair.rejected_token_ids for pair in pairs}
    known, paired = {action.text for action in likeliest}, chosen | rejected
    kept = [a for n, a in enumerate(likeliest) if n < MAX_CANDIDATES or a.text in paired]
    kept += [Action(text, token_ids) for text, token_ids in paired.items() if text not in known]
    return [
        (action, {
            "count": (count := counts[action.text, action.token_ids]),
            "probability": math.exp(sum(action.logprobs)) if count else None,
            "chosen": action.text in chosen,
            "rejected": action.text in rejected,
        })
        for action in kept
    ]  # fmt: skip


def _first_decision(episode: Trajectory) -> Trajectory:
    """The first completion of an episode, and what came of it."""
    ends = len(episode) == 1 and episode.terminated
    return replace(
        episode,
        observations=episode.observations[:2],
        actions=episode.actions[:1],
        rewards=episode.rewards[:1],
        infos=episode.infos[:2],
        terminated=ends,
        truncated=not ends,
    )


def answer_row(place: int, episode: Trajectory) -> Row:
    """What a greedy episode tells of its start state."""
    start, first, *_ = episode.infos
    ends = len(episode) == 1 and episode.terminated
    return {
        "state_id": place,
        "state": state_text(start["state"]),
        "text": episode.observations[0],
        "actions": first["executed"],
        "rewards": first["rewards"],
        "invalid": first["invalid_action"],
        "next_state": None if ends else state_text(first["state"]),
        "terminated": ends,
        "success": episode.infos[-1]["success"],
        "num_actions": sum(len(info["executed"]) for info in episode.infos),
        "return": episode.episode_return,
    }


def write_tables(
    folder: str | Path, meta: Mapping[str, Any], **tables: Sequence[Mapping[str, Any]]
) -> None:
    """Writes tables by name, each from rows with a value for each column, and last their manifest.

    Raises:
        DiskError: the folder cannot be written.
    """
    folder = Path(folder)
    for name, rows in tables.items():
        clean = [{column: as_utf8(value) for column, value in row.items()} for row in rows]
        table = pa.Table.from_pylist(clean, SCHEMAS[name])
        parquet.write_table(folder / f"{name}.parquet", table, name, VERSION)
    write_json(folder / "meta.json", meta)
    write_manifest(folder, {})


def state_text(state: Mapping[str, Any]) -> str:
    """A state as these tables hold it."""
    return json.dumps(state)
