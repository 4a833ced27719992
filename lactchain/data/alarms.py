"""Alarms: what tells silence, loops and a policy that does not read from learning.

`RULES` look at the figures of one round and warn; `check_collapse` looks at all rounds and stops a
run that unlearns what it could. Where states are held back, both go by those that are practised.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lactchain.data.evaluations import practised
from lactchain.errors import CollapseError, NoPairsError
from lactchain.runs import distributed

MOSTLY_SILENT = 0.5
"""Share of the sampled completions that are no chains, above which a run may have collapsed."""

SILENCE_GROWN = 0.1
"""By how much that share must lie above its least one: a model may begin without the format."""

EPISODES_LOST = 5
"""Solved episodes that a collapse must have cost: in a few episodes success is mostly chance."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Alarm:
    """A figure of a round, and from where on it is alarming.

    Attributes:
        name: the metric is `alarm/<name>`.
        figures: the first of these that a round has is judged.
        side, threshold: the alarm goes off "above" it, or "below".
        means: what is the matter.
        mend: what to change.
        before: what to do where it goes off before the first round; empty: it is not judged there.
    """

    name: str
    figures: tuple[str, ...]
    side: str
    threshold: float
    means: str
    mend: str
    before: str = ""


RULES = (
    Alarm(
        "silence", ("sampled_invalid_rate", "rollout/invalid_rate"), "above", 0.3,
        "many completions are no chains",
        "lower simpo.training.learning_rate, raise simpo.loss.nll_weight, or clone longer",
        "clone first, or longer (warm_start), or set actor.decoding to constrained",
    ),
    Alarm(
        "single_actions", ("rollout/single_rate",), "above", 0.9,
        "hardly any chain has a second action; that is right only where chance decides much",
        "lower simpo.training.learning_rate, raise environment.chain_cost",
    ),
    Alarm(
        "endless_chains", ("endless_rate",), "above", 0.5,
        "episodes fail on chains that are all as long as they may be",
        "lower environment.max_chain_length, or train the critic on more episodes",
    ),
    Alarm(
        "bumps", ("bump_rate",), "above", 0.5,
        "most actions leave the state as it was",
        "train the critic on more episodes, sample more completions to each state",
    ),
    Alarm(
        "revisits", ("revisit_rate",), "above", 0.5,
        "most completions lead back to where the episode has been",
        "train the critic on more episodes, sample more completions to each state",
    ),
    Alarm(
        "loops", ("loop_rate",), "above", 0.5,
        "most episodes get the same completion to the same state again and again",
        "raise simpo.preferences.share_after_completion, train the critic on more episodes",
    ),
    Alarm(
        "no_spread", ("pairs/no_spread_rate",), "above", 0.9,
        "in most states all chains are worth the same; that is right only when little is to learn",
        "train the critic on more episodes, lower simpo.preferences.min_margin",
    ),
    Alarm(
        "not_reading", ("retrieval_skill",), "below", 0.05,
        "a completion fits other states as well as its own: the actor does not read",
        "clone longer, lower simpo.training.learning_rate, raise simpo.loss.nll_weight",
        "clone longer (warm_start.behavior.num_chains), and, where shortest paths are known, more"
        " of them (competent_fraction)",
    ),
    Alarm(
        "fell", ("success_lost",), "above", 0.5,
        "more than half of the success of the best round is lost",
        "set simpo.loss.target_kl, and selection, which undoes such a round",
    ),
)  # fmt: skip


def _judged(figures: Mapping[str, Any], before: bool) -> Iterator[tuple[Alarm, str, float, bool]]:
    """Each rule whose figure is known, with its name and value, and whether the alarm goes off."""
    for rule in RULES:
        values = {name: practised(figures, name) for name in rule.figures}
        known = [n for n, value in values.items() if value is not None and not math.isnan(value)]
        if known and (rule.before or not before):
            value = values[known[0]]
            is_off = value < rule.threshold if rule.side == "below" else value > rule.threshold
            yield rule, known[0], value, is_off


def fired(figures: Mapping[str, Any], before: bool = False) -> dict[str, bool]:
    """Which alarms the figures of a round set off; of those rules whose figure is among them.

    Not all rules judge the figures `before` the first round.
    """
    return {rule.name: is_off for rule, *_, is_off in _judged(figures, before)}


def warn(figures: Mapping[str, Any], before: bool = False) -> None:
    """Says which alarms go off, by which figure, and what to change; rank 0 alone does."""
    for rule, name, value, is_off in _judged(figures, before) if distributed.is_main() else ():
        if is_off:
            log.warning(
                "alarm %s: %s is %.3g, %s %g: %s. What helps: %s",
                *(rule.name, name, value, rule.side, rule.threshold, rule.means),
                rule.before if before else rule.mend,
            )


def loss(evaluations: Sequence[Mapping[str, Any]], figures: Mapping[str, Any]) -> dict[str, float]:
    """`success_lost`: the share of the best success of rounds before that is lost, if enough is."""
    lost = _success_lost(evaluations[best_round(evaluations)], figures)
    return {} if lost is None else {"success_lost": lost}


def _success_lost(best: Mapping[str, Any], figures: Mapping[str, Any]) -> float | None:
    """The share of one round's success that another lacks; 0 where that may be chance."""
    before, after = (practised(of_round, "success_rate") for of_round in (best, figures))
    if before is None:
        return None
    fall = before - after
    return fall / before if fall * practised(figures, "num_episodes") >= EPISODES_LOST else 0.0


def first_rounds(rounds: Sequence[Sequence[str]]) -> dict[str, int]:
    """For each alarm the first round in which it went off.

    `rounds` are the names of those that did, before the first round (none) and after each.
    """
    firsts: dict[str, int] = {}
    for number, names in enumerate(rounds):
        firsts = dict.fromkeys(names, number) | firsts
    return firsts


def collapse(evaluations: Sequence[Mapping[str, Any]]) -> CollapseError | None:
    """What a run is to end with that unlearns; None for one that does not.

    By the figures before the first round and after each. Two rules: more than half of the sampled
    completions are no chains, and ever more of them; or success fell to less than half of the best
    so far, and the return with it, in two rounds, and that of sampled play where that is known. The
    error names the rule, its figures, what to change, and the best round.
    """
    diagnosis = _falls_silent(evaluations) or _forgets(evaluations)
    return diagnosis and _collapse(len(evaluations) - 1, *diagnosis, evaluations)


def no_pairs(error: NoPairsError, evaluations: Sequence[Mapping[str, Any]]) -> CollapseError:
    """What a round ends with that finds nothing to prefer."""
    mend = "if that success is all that you want, set it as target"
    return _collapse(len(evaluations), "no_pairs", str(error), mend, evaluations)


def _collapse(
    number: int, rule: str, figures: str, mend: str, evaluations: Sequence[Mapping[str, Any]]
) -> CollapseError:
    best = best_round(evaluations)
    what, reached = judged_by(evaluations[best])
    return CollapseError(
        f"round {number}: the run ends, by the rule {rule}: {figures}; {mend}. The best "
        f"actor is that of round {best}, with a {what} of {reached:.3f}; all rounds are kept, go "
        "on from there in a new folder"
    )


def _falls_silent(evaluations: Sequence[Mapping[str, Any]]) -> tuple[str, str, str] | None:
    *before, last = map(_silence, evaluations)
    grows = bool(before) and last > before[-1] and last >= min(before) + SILENCE_GROWN
    if last <= MOSTLY_SILENT or not grows:
        return None
    course = ", ".join(f"{rate:.2f}" for rate in (*before, last))
    silence = RULES[0]
    return silence.name, f"the share of completions that are no chains went {course}", silence.mend


def _silence(figures: Mapping[str, Any]) -> float:
    sampled = figures.get("sampled_invalid_rate")
    return practised(figures, "invalid_rate") if sampled is None else sampled


def _forgets(evaluations: Sequence[Mapping[str, Any]]) -> tuple[str, str, str] | None:
    best, lately = best_round(evaluations), evaluations[-2:]
    if len(evaluations) - best < 3 or not all(_is_lost(evaluations[best], e) for e in lately):
        return None
    course = ", ".join(f"{practised(e, 'success_rate'):.3f}" for e in evaluations)
    mend = (
        "set simpo.loss.target_kl, which bounds the step whatever the learning rate, and selection"
    )
    return "forgetting", f"success went {course}, and the return fell with it", mend


def _is_lost(best: Mapping[str, Any], figures: Mapping[str, Any]) -> bool:
    """Whether less than half of the best round's success is left, and less of its return."""
    before, after = (f.get("selection/sampled/success_rate") for f in (best, figures))
    falls = (_success_lost(best, figures) or 0.0) > 0.5 and (before is None or after < before)
    return falls and practised(figures, "episode_return") < practised(best, "episode_return")


def best_round(evaluations: Sequence[Mapping[str, Any]]) -> int:
    """The first of the rounds with the highest success, 0 being that before the first."""
    reached = [judged_by(figures)[1] for figures in evaluations]
    return reached.index(max(reached))


def judged_by(figures: Mapping[str, Any]) -> tuple[str, float]:
    """What a round is judged by, and how much of it: success, or the return where none is known."""
    success = practised(figures, "success_rate")
    if success is None:
        return "return", practised(figures, "episode_return")
    return "success", success
