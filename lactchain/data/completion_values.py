"""What a value model thinks of every completion to every state, for people to look at."""

from lactchain.data.evaluations import CompletionValues
from lactchain.environments.language import LanguageEnv
from lactchain.types import Policy

MAX_VALUES = 20_000


def estimate_completion_values(policy: Policy, env: LanguageEnv) -> CompletionValues | None:
    """V(s) and the advantage of each completion, by the values that a policy ranks with.

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
    return CompletionValues(
        states=tuple(states),
        completions=tuple(action.text for action in ranking.actions),
        values=tuple(ranking.state_values(texts).tolist()),
        advantages=tuple(map(tuple, ranking.advantages(texts).tolist())),
    )
