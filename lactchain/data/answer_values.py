"""What a value model thinks of every answer to every state, for people to look at."""

from __future__ import annotations

from lactchain.data.evaluations import AnswerValues
from lactchain.environments.language import LanguageEnv
from lactchain.types import Policy

MAX_VALUES = 20_000


def answer_values(policy: Policy, env: LanguageEnv) -> AnswerValues | None:
    """V(s) and the advantage of each answer, by the values that a policy ranks answers with.

    None where there is no such ranking, where the view does not list states or their texts depend
    on what happened before, or where there would be more than `MAX_VALUES` of them.
    """
    ranking = getattr(policy, "ranking", None)
    if ranking is None or env.view.states is None or env.history != 1:
        return None
    states = env.view_states()
    if len(states) * len(ranking.actions) > MAX_VALUES:
        return None
    texts = [env.reset(options={"state": state})[0] for state in states]
    return AnswerValues(
        states=tuple(states),
        answers=tuple(action.text for action in ranking.actions),
        values=tuple(ranking.state_values(texts).tolist()),
        advantages=tuple(map(tuple, ranking.advantages(texts).tolist())),
    )
