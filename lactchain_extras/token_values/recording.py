"""Leaves what a value model makes of a few episodes' tokens: `explorer.inspections`."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lactchain.errors import Interrupted
from lactchain.models.prompting import PromptTemplate
from lactchain.runs import distributed
from lactchain.runs.process import stop_requested
from lactchain.runs.run import Run
from lactchain.types import Trajectory
from lactchain_extras.explorer.recording import TokenTexts, state_text, write_tables
from lactchain_extras.token_values.model import ValueModel
from lactchain_extras.token_values.token_view import TokenView, token_view
from lactchain_extras.token_values.trees import prefix_trees

MAX_EPISODES = 8
"""So many episodes are looked at, at most: the best, the worst, and the first ones."""

MAX_DECISIONS = 40
"""So many decisions of each, at most, from its beginning: 320 texts are read in all."""

AT_ONCE = 8
"""Decisions that are read together: all that their states say of a vocabulary is in memory."""

EXTREMES = (min, "worst"), (max, "best")


class Picked(NamedTuple):
    """Episodes that are looked at: why, by their places among all; these; how many are in all."""

    chosen: dict[int, str]
    trajectories: tuple[Trajectory, ...]
    of: int


def picked(trajectories: Sequence[Trajectory]) -> Picked:
    """The episodes that are looked at.

    Of equal returns the shortest episode is the best, and the longest the worst.
    """
    places = [n for n, one in enumerate(trajectories) if len(one) > one.cut_out_of_sight]
    worth = {n: (trajectories[n].episode_return, -len(trajectories[n]), -n) for n in places}
    named = {function(places, key=worth.get): name for function, name in EXTREMES if places}
    for place in places:
        if len(named) < MAX_EPISODES:
            named.setdefault(place, "first")
    chosen = dict(sorted(named.items()))
    return Picked(chosen, tuple(trajectories[place] for place in chosen), len(trajectories))


def record_token_values(
    run: Run, model: ValueModel, template: PromptTemplate, trajectories: Sequence[Trajectory]
) -> None:
    """Writes RUN/token_values of some episodes, unless none has a decision to be looked at.

    Args:
        template: makes prompts of observations, as it did for the model's training.

    Raises:
        Interrupted: a signal asked to stop; the model is saved, and its values are computed anew.
    """
    shown = picked(trajectories)
    if not shown.chosen:
        return
    view = token_view(shown.trajectories, template, model.tokenizer)
    starts = np.flatnonzero(np.diff(view.episodes, prepend=-1))
    places = np.arange(len(view)) - starts[view.episodes]  # of decisions in their episodes
    looked_at = np.flatnonzero(places < MAX_DECISIONS)
    texts, rows = TokenTexts(model.tokenizer), []
    for first in range(0, len(looked_at), AT_ONCE):
        if stop_requested():
            message = "stopped as values of tokens were computed; give the same command to go on"
            raise Interrupted(stop_requested(), message)
        some = looked_at[first : first + AT_ONCE]
        for row, ids, q, v in _values(model, view, some):
            tokens = {"tokens": texts.split(tuple(ids)), "q": q, "v": v}
            rows.append(_row(shown, int(view.episodes[row]), int(places[row])) | tokens)
    meta = {"method": model.meaning.method, "gamma": model.meaning.gamma}
    meta |= {"episodes": len(shown.chosen), "of": shown.of, "most_decisions": MAX_DECISIONS}
    if distributed.is_main():
        write_tables(run.path("token_values"), meta, decisions=rows)


def _row(shown: Picked, episode: int, decision: int) -> dict[str, Any]:
    """What is known of a decision without the model."""
    place, reason = [*shown.chosen.items()][episode]
    trajectory = shown.trajectories[episode]
    state = trajectory.infos[decision].get("state")
    return {
        "episode": place,
        "chosen": reason,
        "return": trajectory.episode_return,
        "decision": decision,
        "state": None if state is None else state_text(state),
        "prompt": trajectory.observations[decision],
        "completion": trajectory.actions[decision].text,
        "reward": trajectory.rewards[decision],
    }


def _values(
    model: ValueModel, view: TokenView, rows: np.ndarray
) -> Iterator[tuple[int, list[int], list[float], list[float]]]:
    """Of each decision its row, its tokens, Q(s, token) of each of them, and V(s) before it."""
    prompts = [view.prompts[number] for number in view.prompt_tm1[rows]]
    completions = [view.completions[number] for number in view.completion_tm1[rows]]
    # The last token of a completion is an action, and never a state.
    texts = [prompt + tokens[:-1] for prompt, tokens in zip(prompts, completions, strict=True)]
    layout = prefix_trees(texts, model.tokenizer.pad_token_id)
    inputs = {name: torch.from_numpy(t).to(model.device) for name, t in layout.arrays.items()}
    nodes = [p[len(prompt) - 1 :] for p, prompt in zip(layout.places, prompts, strict=True)]
    q, v = model.token_values(inputs, torch.from_numpy(np.concatenate(nodes)).to(model.device))
    tokens = torch.tensor(np.concatenate(completions), device=model.device)
    lengths = [len(tokens) for tokens in completions]
    q_of, v_of = q.gather(1, tokens[:, None])[:, 0].split(lengths), v.split(lengths)
    for row, ids, own_q, own_v in zip(rows, completions, q_of, v_of, strict=True):
        yield row, ids, own_q.tolist(), own_v.tolist()
