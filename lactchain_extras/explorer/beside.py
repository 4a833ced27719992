"""What a page holds of other runs' episodes: the evaluation that each ended with.

Of very many, those from start states that the runs end differently from come first.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from lactchain.inspection.run_view import RunView
from lactchain_extras.explorer.rollout_tables import Played, weight
from lactchain_extras.explorer.summary import chosen_round
from lactchain_extras.explorer.worth import Worth, key

MAX_BYTES = 6_000_000
"""What these episodes may weigh, as text."""


def episodes_beside(runs: Sequence[RunView], worth: Sequence[Worth]) -> tuple[list[Played], str]:
    """Episodes of all runs but the first, and what is left out of them, if anything.

    Args:
        worth: by what the completions of each run are valued, in the order of the runs.
    """
    played = [
        episode
        for number, (run, values) in enumerate(zip(runs, worth, strict=True))
        for episode in (_evaluated(run, values, number) if number else ())
    ]
    differing = _differing(runs)
    by_state: dict[str, list[Played]] = {}
    for episode in played:
        by_state.setdefault(key(episode.trajectory.infos[0]["state"]), []).append(episode)
    told, kept, left = set(), [], MAX_BYTES
    for state in sorted(by_state, key=lambda state: -differing[state]):
        left -= sum(weight(episode.trajectory, told) for episode in by_state[state])
        if left < 0:
            break
        kept += by_state[state]
    if len(kept) == len(played):
        return kept, ""
    some, whole = len({key(e.trajectory.infos[0]["state"]) for e in kept}), len(by_state)
    return kept, (
        f"Episodes of other runs are here from {some:,} of {whole:,} start states, those that end "
        "differently first; the table counts all."
    )


def _evaluated(run: RunView, worth: Worth, number: int) -> Iterator[Played]:
    """The episodes of a run's result, from states that are known."""
    chosen = chosen_round(run)
    stage = "" if chosen is None else f"round_{chosen}/evaluation"
    part = run.parts.get(stage)
    is_evaluated = part is not None and "after" in part.episodes
    for place, trajectory in enumerate(part.trajectories if is_evaluated else ()):
        if len(trajectory) and trajectory.infos[0].get("state") is not None:
            yield Played(stage, place, trajectory, worth, number)


def _differing(runs: Sequence[RunView]) -> Counter[str]:
    """In how many runs an episode from a start state ends otherwise than in the first."""
    ends = [
        {key(result.state): result.success for result in run.results.get(chosen_round(run), ())}
        for run in runs
    ]
    first, *others = ends or [{}]
    return Counter(
        state
        for other in others
        for state, success in other.items()
        if success != first.get(state, success)
    )
