"""All that the rest of the program may ask of a world, `TextView`, and states that are held back.

A world of one's own is an environment with a method `text_view`, that returns its `TextView`. For a
class of somebody else's, a function that makes the view is registered: `shipped_view.register`.
"""

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial, singledispatch
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

import gymnasium as gym
from gymnasium import spaces

from lactchain.environments import faults
from lactchain.environments.exact import TabularModel, check_model
from lactchain.errors import ConfigError, EnvironmentFault
from lactchain.types import ChainGrammar, Policy

State = Mapping[str, Any]

NUM_STARTS = 500
"""Seeds that count as start states. Episodes to learn from begin under other seeds."""


def reset_into(env: gym.Env, state: State) -> tuple[Any, dict[str, Any]]:
    """`TextView.set_state` of worlds that are told the state as an option of `reset`."""
    return env.reset(options={"state": state})


def fresh(call: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of a shipped view that makes its value anew: it is not copied."""
    call.is_fresh = True  # type: ignore[attr-defined]
    return call


def every_ending(env: gym.Env) -> bool:
    """`TextView.success` of worlds that end in one way, and that well."""
    return True


class Outcome(NamedTuple):
    """What may come of an action.

    Attributes:
        probability: of this outcome among all.
        reward: of the action.
        state: after it; None where the episode is over.
    """

    probability: float
    reward: float
    state: State | None


FORM = re.compile(r"[<>^]?[+-]?0?\d{0,2}(\.\d)?[a-zA-Z%]?")
"""How a field of a template may be written: a file of anybody may name it."""


@dataclass(frozen=True)
class TextView:
    """A world in words, and what is known of it.

    Everything but the first three may be left out: figures and pictures that need it then are. In
    the place of get_state, set_state and states, if none is given, seeds are states (`Replays`);
    not where actions are texts.
    Functions of a module, unlike lambdas, let the environment be pickled.

    Attributes:
        action_names: the words of the actions, in the order of their numbers.
        template: text block of a state, with the fields of `describe` in braces, and `{feedback}`:
            what went wrong with the last completion, with a leading space, empty most of the time.
        describe: `describe(env, observation, info)`, the fields of the template.
        get_state: the state that the environment is in, such that JSON can hold it; arrays become
            lists, which set_state is given.
        set_state: `set_state(env, state)` resets into a state; returns what `reset` returns.
        states: all states in which an episode is not over, in the order of the exact model.
        starts: those that an episode may begin in; None: all of them.
        model: the exact dynamics, for small worlds: without them there are no shortest paths and
            true values.
        outcomes: `outcomes(env, action)`, all that may come of an action, by its number, in the
            state that the environment is in: for worlds that throw dice and have no model, or hide
            what an observer can only guess, as a card that may be any of those not seen.
        position: where the agent is, x and y first.
        success: whether an episode that has terminated ended well, such as `every_ending`; None:
            nobody says, and so there are no figures of success.
        bump_feedback: said when some action of the chain left the state as it was.
        spelling: brings what was said into the words of `action_names`, where a world is lenient
            (extractor `utterance`).
        step_takes_text: whether `step` has a rule of its own for text that is no chain of actions,
            and takes it in the place of an action; if not, nothing is done.
        reads: the grammar of the completions that the world reads and plays itself: `step` is given
            each one whole, and its info says what came of it, as `LanguageEnv`'s does.
        invalid_wipes_history: whether such a text, and all before it, leave the history.
        ending: what is said instead of all else when the episode has ended, if anything.
        waits: whether a step waits for somebody else, as that of a server: environments then step
            side by side, each in a thread.
        max_chains: completions after which an episode is truncated, where no other number is given.
        brief: the shortest template that tells the states apart, for models that pay for every
            token; None: there is no shorter one.
        relative: a template for models that read, which tells in words where the goal is, as seen
            from the agent; None: there is none.
        rare_words: text of what observations may hold and random play seldom shows, for tokenizers.
        policies: scripted policies beside those of every world (`make_offline_data`), by the names
            that configurations use; each is made of a `LanguageEnv`.
        competent: the one of them that a warm start clones where there are no shortest paths; it
            reads this template and plays from the states in which an episode begins.
        picture: what reports draw, a `lactchain.inspection.pictures.Picture`.
    """

    action_names: tuple[str, ...]
    template: str
    describe: Callable[[gym.Env, Any, Mapping[str, Any]], Mapping[str, object]]
    get_state: Callable[[gym.Env], State] | None = None
    set_state: Callable[[gym.Env, State], tuple[Any, dict[str, Any]]] | None = None
    states: Callable[[gym.Env], list[State]] | None = None
    starts: Callable[[gym.Env], list[State]] | None = None
    model: Callable[[gym.Env], TabularModel] | None = None
    outcomes: Callable[[gym.Env, int], list[Outcome]] | None = None
    position: Callable[[gym.Env], list[int]] | None = None
    success: Callable[[gym.Env], bool] | None = None
    bump_feedback: str = " Some action changed nothing."
    spelling: Callable[[str], str] = str
    step_takes_text: bool = False
    reads: ChainGrammar | None = None
    invalid_wipes_history: bool = False
    ending: Callable[[gym.Env], str | None] | None = None
    waits: bool = False
    max_chains: int = 16
    brief: str | None = None
    relative: str | None = None
    rare_words: str = ""
    policies: Mapping[str, Callable[[Any], Policy]] = field(default_factory=dict)
    competent: str | None = None
    picture: Any = None

    def __post_init__(self) -> None:
        texts = {"template": self.template, "bump_feedback": self.bump_feedback}
        texts |= {f"action_names[{n}]": name for n, name in enumerate(self.action_names)}
        rules = [(name, isinstance(value, str), "a text", value) for name, value in texts.items()]
        listed, known = isinstance(self.action_names, list | tuple), sorted(self.policies)
        rules += [
            ("action_names", listed, "a list of texts", self.action_names),
            ("max_chains", type(self.max_chains) is int, "a whole number", self.max_chains),
            ("competent", self.competent in (None, *known), f"one of {known}", self.competent),
        ]
        for name, holds, expected, got in rules:
            if not holds:
                raise ConfigError(f"TextView.{name}: expected {expected}, got {got!r:.60}")

    def text(
        self, env: gym.Env, observation: Any, info: Mapping[str, Any], feedback: str = ""
    ) -> str:
        """The state of an environment in words; `ConfigError` if the template has other fields."""
        fields = self.describe(env, observation, info)
        if type(fields) is not dict and not isinstance(fields, Mapping):
            rule = "the view's describe gives a dict, the fields of its template"
            raise faults.broken_rule(env, rule, fields)
        try:
            return self.template.format(feedback=feedback, **fields)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"environment.template: expected fields out of {[*fields, 'feedback']}, got "
                f"{self.template!r}: {error}"
            ) from error

    def apart(self) -> dict[str, Any]:
        """Its functions of states, such that a world and its caller share nothing they change."""
        ways = {name: partial(_asked, name) for name in faults.RULES_OF_VIEWS}
        ways |= {"set_state": _set, "model": partial(_modelled, self)}
        known = {name: getattr(self, name) for name in ways}
        return {
            name: fresh(partial(ways[name], call))
            for name, call in known.items()
            if call is not None and not getattr(call, "is_fresh", False)
        }

    def check(self, env: gym.Env) -> None:
        """Raises `ConfigError` unless actions and template fit the environment."""
        space, names = env.action_space, self.action_names
        if isinstance(space, spaces.Discrete):
            if space.start != 0:
                raise ConfigError(f"{env}: expected discrete actions from 0, got {space}")
            if len(names) != space.n:
                raise ConfigError(
                    f"environment.action_names: expected {space.n} names, got {names}"
                )
        elif not isinstance(space, spaces.Text):
            raise ConfigError(f"{env}: expected discrete actions, or text, got {space}")
        try:
            parts = list(string.Formatter().parse(self.template))
        except ValueError as error:
            raise ConfigError(f"environment.template: {error}") from error
        for _, name, form, conversion in parts:
            if name and not (name.isidentifier() and FORM.fullmatch(form) and not conversion):
                raise ConfigError(
                    f"environment.template: expected the name of a field in braces, with a format "
                    f"such as :.2f at most, got {{{name[:40]}{':' if form else ''}{form[:40]}}}"
                )


def _asked(name: str, call: Callable[..., Any], env: gym.Env, *action: int) -> Any:
    """What a function of a view returns, of its type and nobody else's to change."""
    if name in ("states", "starts", "outcomes"):  # nobody else tells of it if it raises
        got = faults.called(call, env, None, *(action or [None]), env, *action)
    else:
        got = call(env)
    value, (is_right, rule) = faults.plain(got), faults.RULES_OF_VIEWS[name]
    if not is_right(value):
        raise faults.broken_rule(env, f"the view's {name} {rule}", got)
    return value


def _set(call: Callable[..., Any], env: gym.Env, state: State) -> Any:
    return call(env, deepcopy(state))


_sound: WeakValueDictionary[int, TabularModel] = WeakValueDictionary()
"""Models that were looked at, by `id`: many worlds hand over the same one each time."""


def _modelled(view: TextView, call: Callable[..., Any], env: gym.Env) -> TabularModel:
    model = faults.called(call, env, None, None, env)
    if _sound.get(id(model)) is not model:
        listed = [of and faults.plain(of(env)) for of in (view.states, view.starts)]
        if fault := check_model(model, *listed):
            raise EnvironmentFault(f"{env}: the view's model: expected {fault}")
        _sound[id(model)] = model
    return model


@singledispatch
def shipped_view(world: gym.Env) -> TextView:
    """The view of a bare environment (of one that speaks text, that text), or a `ConfigError`."""
    if hasattr(world, "text_view"):
        if not isinstance(view := world.text_view(), TextView):
            raise ConfigError(f"{world}: expected text_view to return a TextView, got {view!r:.60}")
        return view
    if isinstance(world.observation_space, spaces.Text):
        return TextView((), "{observation}{feedback}", describe_text)
    raise ConfigError(
        f"{world}: no text view is shipped for this environment; give its class a method text_view,"
        " or write a TextView and register a LanguageEnv with it (see docs/extending.md)"
    )


def tabular_model(env: gym.Env, view: TextView | None = None) -> TabularModel:
    """The exact dynamics of a small world by its view, or the shipped one; `ValueError` if none."""
    view = view or shipped_view(env.unwrapped)
    if view.model is None:
        raise ValueError(f"view: expected an exact model, that of {env.unwrapped} has none")
    return view.model(env)


def describe_text(env: gym.Env, observation: str, info: Mapping[str, Any]) -> dict[str, object]:
    """`TextView.describe` of worlds that speak text themselves."""
    return {"observation": observation}


class Replays(gym.Wrapper):
    """An environment that comes back to a state by its seed, and by playing what was played since.

    Luck repeats itself, so that the state is the same in what is hidden, too. Whoever needs other
    luck takes another state that reads alike.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.seed = 0
        self.played: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode under a seed, a drawn one for None, or in `options["state"]`."""
        options = dict(options or {})
        state = options.pop("state", None)
        if state is None:
            drawn = int(self.np_random.integers(2**31)) if seed is None else seed
            state = {"seed": drawn, "played": []}
        if not (isinstance(state, Mapping) and state.keys() == {"seed", "played"}):
            raise ValueError(f"state: expected a seed, and what was played since, got {state}")
        self.seed, self.played = state["seed"], []
        result = self.env.reset(seed=self.seed, options=options or None)
        for action in state["played"]:
            observation, _, terminated, truncated, info = self.step(action)
            if terminated or truncated:
                raise ValueError(f"state: expected one in which no episode is over, got {state}")
            result = observation, info
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Plays one action, and remembers it."""
        self.played.append(action)
        return self.env.step(action)


def with_states(env: gym.Env, view: TextView) -> tuple[gym.Env, dict[str, Any]]:
    """An environment whose states are known, and the functions of its view that are then needed.

    Where actions are texts, each state would hold all that was said.
    """
    known = (view.get_state, view.set_state, view.states) != (None, None, None)
    if known or not isinstance(env.action_space, spaces.Discrete):
        return env, {}
    functions = {"get_state": _replayed_state, "set_state": reset_into, "states": _seeds}
    return Replays(env), functions


def lists_states(env: Any) -> bool:
    """Whether the view of a language environment lists states: seeds may stand for them."""
    return env.view.states is not None and not isinstance(env.env, Replays)


def _replayed_state(env: gym.Env) -> State:
    seed, played = map(env.get_wrapper_attr, ("seed", "played"))  # other wrappers may be around
    return {"seed": seed, "played": [*played]}


def _seeds(env: gym.Env) -> list[State]:
    return [{"seed": seed, "played": []} for seed in range(NUM_STARTS)]


@dataclass(frozen=True)
class HeldBack:
    """The states that are never practised, the same in every stage and run; none by default.

    Attributes:
        by: the fields that tell them from the others; none: all fields.
        values: what these fields hold in them, as JSON.
    """

    by: tuple[str, ...] = ()
    values: frozenset[str] = frozenset()

    @classmethod
    def choose(cls, starts: Sequence[State], share: float, by: Sequence[str] = ()) -> Self:
        """The first share of what the fields hold in the start states, by rank of a hash of it.

        So the choice depends on the states alone: neither on a seed nor on their order.
        `ConfigError` if the states have no such field, or none would be held back, or none left.
        """
        if unknown := set(by) - set(starts[0]):
            raise ConfigError(
                "environment.held_back.by: expected fields of a state, out of"
                f" {sorted(starts[0])}, got {sorted(unknown)}"
            )
        values = sorted({_value(state, by) for state in starts}, key=_rank)
        count = round(share * len(values))
        if not 0 < count < len(values):
            raise ConfigError(
                "environment.held_back.share: expected to hold back some starts and to leave some,"
                f" {share} of {len(values)} is {count}; change the share or held_back.by, or hold"
                " none back"
            )
        return cls(tuple(by), frozenset(values[:count]))

    @classmethod
    def of(cls, states: Iterable[State]) -> Self:
        """Exactly these states."""
        return cls(values=frozenset(_value(state, ()) for state in states))

    def __contains__(self, state: State) -> bool:
        return bool(self.values) and _value(state, self.by) in self.values

    def __bool__(self) -> bool:
        return bool(self.values)


def _value(state: State, by: Sequence[str]) -> str:
    return json.dumps({name: state[name] for name in by or state}, sort_keys=True)


def _rank(value: str) -> bytes:
    return hashlib.blake2b(value.encode(), digest_size=8).digest()
