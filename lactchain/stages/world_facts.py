"""What a pipeline has to know of its world before it starts: by its exact model, or by play."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import numpy as np

from lactchain.config.settings import EnvironmentConfig
from lactchain.data.rollouts import Rollouts, collect
from lactchain.environments import exact
from lactchain.environments.language import INVALID_FEEDBACK, LanguageEnv
from lactchain.environments.scripted import RandomChains
from lactchain.environments.views import State, TextView, lists_states
from lactchain.errors import ConfigError, EnvironmentFault
from lactchain.types import Trajectory

NUM_EPISODES = 512
"""Episodes of random play, where there is no exact model to ask."""

NUM_GOOD = 64
"""Episodes of the competent policy that the view names, whose returns are a good player's."""

LONGEST_CHAIN = 20
"""Actions of a chain at most, where nobody says otherwise."""

NUM_PUT_BACK = 16
"""Of these, so many are played up to their last decision once more."""

NUM_FOLLOWED = 16
"""Episodes of random play that are followed in an exact model."""

BY_MODEL, BY_PLAY = "its exact model", "play"


@dataclass(frozen=True)
class WorldFacts:
    """What the rules go by."""

    num_states: int  # that are told apart; with a history, texts
    num_actions: int  # to choose from
    path_length: float  # actions that a solved episode takes, in the mean over start states
    longest_path: int  # the same, of the start state that needs most
    reward_scale: float  # root mean square of what a good player earns from a state, as returns
    worst_reward: float  # the worst that an action can earn
    max_chains: int  # completions after which an episode is cut where no number is given
    has_chance: bool  # whether an action can have several outcomes
    source: str  # how it is known: `BY_MODEL` or `BY_PLAY`
    tells_success: bool = True  # whether the world says which endings are good
    by_reward: bool = False  # whether rewards beside the goal decide (`exact.goes_by_reward`)
    num_ways: int = 0  # different best ways to the end, of all states; 0: they are not known

    def __str__(self) -> str:
        dice = ", with chance" if self.has_chance else ""
        what = "states" if self.source == BY_MODEL else "texts"
        return (
            f"{self.num_states} {what}, {self.num_actions} actions{dice}; an episode is solved in"
            f" {self.path_length:.3g} actions ({self.longest_path} at most), for a return of"
            f" about {self.reward_scale:.3g} (by {self.source})"
        )


def measure_world(config: EnvironmentConfig, seed: int = 0) -> WorldFacts:
    """The size of a world: by its exact model, or by play where it has none."""
    costs = {name: getattr(config, name) or 0.0 for name in ("invalid_penalty", "chain_cost")}
    config = replace(config, **costs)
    # An action at a time shows where each one leads.
    rollouts = Rollouts(replace(config, max_chain_length=1))
    view = rollouts.env.view
    if view.model is not None and view.states is not None:
        model = view.model(rollouts.env.env)
        size = size_of_model(model, rollouts.env.max_chains)
        check_model(model, rollouts.env, random_play(rollouts, seed, NUM_FOLLOWED))
        size = replace(size, tells_success=view.success is not None)
        if rollouts.env.history == 1:
            return size
        episodes = random_play(rollouts, seed)  # it is their texts that are learnt
        texts = (text for episode in episodes for text in episode.observations[:-1])
        return replace(size, num_states=num_unseen_and_seen(texts))
    good = [] if view.competent is None else good_play(config, seed)
    return size_by_play(rollouts, seed, good)


def size_of_model(model: exact.TabularModel, max_chains: int = TextView.max_chains) -> WorldFacts:
    """The size of a world that is known exactly."""
    lengths = exact.solution_lengths(model, exact.FAR_SIGHTED)
    solvable = lengths[np.isfinite(lengths)]
    path_length = float(solvable.mean()) if len(solvable) else 1.0
    values = exact.optimal_values(model, gamma_of(path_length, not model.deterministic))
    if not len(solvable) and not values.any():
        raise ConfigError(
            "environment: expected a world in which something can be reached or earned, found that "
            "nothing leads to a goal or pays; correct its goals and rewards"
        )
    longest_path = math.ceil(solvable.max(initial=1.0) - 1e-6)
    ways = exact.optimal_chains(model, longest_path) if model.deterministic else []
    return WorldFacts(
        num_states=len(lengths),
        num_actions=model.next_state.shape[1],
        path_length=path_length,
        longest_path=longest_path,
        reward_scale=float(np.sqrt(np.mean(values**2))) or 1.0,
        worst_reward=float(model.reward.min()),
        max_chains=max_chains,
        has_chance=not model.deterministic,
        source=BY_MODEL,
        by_reward=exact.goes_by_reward(model),
        num_ways=len({*ways} - {()}),
    )


def size_by_play(rollouts: Rollouts, seed: int, good: Sequence[Trajectory] = ()) -> WorldFacts:
    """The size of a world as random play shows it, and `good` play if there is any.

    States are those that the view lists, or else estimated by what was seen once and twice. A state
    that the same action leads on from to several tells of chance. Without it the shortest ways
    through what was seen stand for solutions, from all that was seen, as luck may have begun beside
    the goal; with chance, or where texts remember, the solved episodes as they were.
    """
    episodes = random_play(rollouts, seed)
    check_put_back(rollouts.env, episodes)
    good = good or episodes
    steps = [step for e in episodes for step in _steps(rollouts.env, e)]
    led: dict[tuple[str, str], set[str | None]] = {}
    for before, action, after in steps:
        led.setdefault((before, action), set()).add(after)
    chance = rollouts.deterministic is False or any(len(after) > 1 for after in led.values())
    ended = [e for e in good if e.terminated and e.infos[-1]["success"] is not False]
    path = [sum(e.num_actions) for e in ended]
    if not chance and rollouts.env.history == 1:
        path = _ways(led)
    path = path or [rollouts.env.max_chains]
    rewards = [reward for e in episodes for info in e.infos for reward in info["rewards"]]
    path_length = float(np.mean(path))
    gamma = gamma_of(path_length, chance)
    returns = np.concatenate([e.returns(gamma, "action") for e in good])
    return WorldFacts(
        num_states=_num_states(rollouts.env, [before for before, _, _ in steps]),
        num_actions=len(rollouts.env.grammar.action_names),
        path_length=path_length,
        longest_path=int(max(path)),
        reward_scale=float(np.sqrt(np.mean(returns**2))) or 1.0,
        worst_reward=min(rewards, default=0.0),
        max_chains=rollouts.env.max_chains,
        has_chance=chance,
        source=BY_PLAY,
        tells_success=rollouts.env.view.success is not None,
    )


def _num_states(env: LanguageEnv, seen: Sequence[str]) -> int:
    """Of those that were seen, and of those that were not: listed by the view, if all are."""
    if env.history == 1 and lists_states(env):
        listed = {json.dumps(state, sort_keys=True) for state in env.view_states()}
        if listed.issuperset(seen):
            return len(listed)
    return num_unseen_and_seen(seen)


def _steps(env: LanguageEnv, episode: Trajectory) -> Iterator[tuple[str, str, str | None]]:
    """State, completion and state after it, None at a good end; a cut tells nothing.

    A state is what the view reads; else the text, without what it says of the last completion.
    """

    def name(t: int) -> str:
        state, text = episode.infos[t]["state"], episode.observations[t]
        if state is not None and env.history == 1 and lists_states(env):
            return json.dumps(state, sort_keys=True)
        return _plain(env, text)

    for t, action in enumerate(episode.actions):
        if t + 1 < len(episode):
            yield name(t), action.text, name(t + 1)
        elif episode.terminated:
            is_good = episode.infos[-1]["success"] is not False
            yield name(t), action.text, None if is_good else "a bad end"


def _ways(led: Mapping[tuple[str, str], set[str | None]]) -> list[int]:
    """Completions of the shortest way to a good end from each state from which one was seen."""
    before: dict[str | None, set[str]] = {}
    for (state, _), afters in led.items():
        for after in afters:
            before.setdefault(after, set()).add(state)
    length, ways, reached = 0, {}, {None}
    while reached:
        length += 1
        reached = set().union(*(before.get(state, set()) for state in reached)) - ways.keys()
        ways |= dict.fromkeys(reached, length)
    return list(ways.values())


def check_put_back(env: LanguageEnv, episodes: Sequence[Trajectory]) -> None:
    """Plays up to the last decisions of some episodes once more.

    Where one reads otherwise than it did (`ConfigError`), pairs would compare completions to other
    states than the actor was asked about.
    """
    for episode in episodes[:NUM_PUT_BACK]:
        info, read = episode.infos[-2], episode.observations[-2]
        options = {"state": info["state"], "remembered": info.get("remembered")}
        again, _ = env.reset(options=options)
        if info["state"] is not None and again != _plain(env, read):
            raise ConfigError(
                f"environment: expected a world that can be put back where it was, got {again!r}"
                f" where {read!r} had been read; let all its dice come from the seed of reset, or"
                " give its view states, get_state and set_state"
            )


def check_model(
    model: exact.TabularModel, env: LanguageEnv, episodes: Iterable[Trajectory]
) -> None:
    """Follows episodes in a model; `EnvironmentFault`: by it one of them cannot have happened.

    Figures beside its optimum would be wrong without a word.
    """
    for episode in episodes:
        for before, info in pairwise(episode.infos):
            if info["state"] is None or not info.get("shows_state", True):  # cut amid the step
                break
            is_over = info is episode.infos[-1] and episode.terminated
            if not _follows(model, env, before["state"], info, is_over):
                raise EnvironmentFault(
                    f"{env.env}: expected what the view's model leads to, got {info['state']} and "
                    f"rewards {info['rewards']} by {info['executed']} in {before['state']}; correct"
                    " the model, or give the view none"
                )


def _follows(
    model: exact.TabularModel, env: LanguageEnv, before: State, info: Mapping, is_over: bool
) -> bool:
    """Whether a chain can lead there; with chance rewards may be means, and are not compared."""
    try:
        here = model.non_terminal[[model.row(before)]]
        for name, reward in zip(info["executed"], info["rewards"], strict=True):
            led = here, env.grammar.action_names.index(name)
            may = model.probability[led] > 0
            if model.deterministic:
                may &= np.isclose(model.reward[led], reward)
            here = np.unique(model.next_state[led][may])
        if is_over:
            return bool(model.terminal[here].any())
        return model.non_terminal[model.row(info["state"])] in here
    except ValueError:  # the model has no such state, or the episode is over there
        return False


def _plain(env: LanguageEnv, text: str) -> str:
    """A text without what it says of the last completion."""
    feedbacks = (env.view.bump_feedback, INVALID_FEEDBACK) if env.history == 1 else ()
    return reduce(lambda rest, feedback: rest.replace(feedback, ""), filter(None, feedbacks), text)


def random_play(rollouts: Rollouts, seed: int, count: int = NUM_EPISODES) -> list[Trajectory]:
    """Episodes of random chains."""
    return collect(RandomChains(rollouts.env.grammar), rollouts, count, seed)


def good_play(config: EnvironmentConfig, seed: int) -> list[Trajectory]:
    """Episodes of the competent policy that the view names, in the words that it reads."""
    longest = config.max_chain_length or LONGEST_CHAIN
    rollouts = Rollouts(replace(config, template=None, history=1, max_chain_length=longest))
    view = rollouts.env.view
    return collect(view.policies[view.competent](rollouts.env), rollouts, NUM_GOOD, seed)


def num_unseen_and_seen(seen: Iterable[str]) -> int:
    """How many different things there are, by a sample of them: D + f1² / 2 f2 (Chao 1984)."""
    _, counts = np.unique(list(seen), return_counts=True)
    once, twice = (counts == 1).sum(), max(1, (counts == 2).sum())
    return len(counts) + int(once**2 / (2 * twice))


def gamma_of(path_length: float, has_chance: bool = False) -> float:
    """A horizon as long as a solved episode; returns of a poor policy are mostly noise beyond.

    Four times as long where there is chance, since luck may want several tries.
    """
    horizon = max(path_length, 1.0) * (4 if has_chance else 1)
    return round(min(0.99, max(0.8, 1 - 1 / horizon)), 3)
