"""Twelve small worlds of all kinds, as others write them: `other_worlds:others/Puzzle-v0`, ...

Each is a `Game`: its states, what an action leads to, and how a state reads. Some tell their exact
model, and some do not; `others/Blackjack-v0` tells nothing but words. `rooms` makes more of them.
"""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np

from lactchain import LanguageEnv, TextView
from lactchain.environments.exact import TabularModel
from lactchain.environments.views import every_ending

Outcome = tuple[float, Hashable, float]
"""Probability, state that follows, reward."""


@dataclass(frozen=True)
class Game:
    """A small world.

    Attributes:
        actions: their names.
        first: a state from which all others can be reached, or several.
        after: the outcomes of an action in a state.
        over: whether a state ends an episode.
        words: how a state reads.
        tells: "model", "states" without what follows, or "nothing".
    """

    actions: tuple[str, ...]
    first: tuple[Hashable, ...]
    after: Callable[[Any, int], list[Outcome]]
    over: Callable[[Any], bool]
    words: Callable[[Any], str]
    tells: str = "model"


@cache
def states_of(game: Game) -> list[Any]:
    """All that can be reached, those that end an episode last."""
    found, waiting = dict.fromkeys(game.first), deque(game.first)
    while waiting:
        state = waiting.popleft()
        for action in range(0 if game.over(state) else len(game.actions)):
            for _, after, _ in game.after(state, action):
                if after not in found:
                    found[after] = None
                    waiting.append(after)
    return sorted(found, key=game.over)


@cache
def model_of(game: Game) -> TabularModel:
    states = states_of(game)
    number = {state: row for row, state in enumerate(states)}
    over = np.array([game.over(state) for state in states])
    most = max(len(game.after(s, a)) for s, o in zip(states, over, strict=True) if not o
               for a in range(len(game.actions)))  # fmt: skip
    shape = (len(states), len(game.actions), most)
    after = np.broadcast_to(np.arange(len(states))[:, None, None], shape).copy()
    chance, reward = np.zeros(shape), np.zeros(shape)
    chance[:, :, 0] = 1
    for row in np.flatnonzero(~over):
        for action in range(len(game.actions)):
            for k, (p, state, earned) in enumerate(game.after(states[row], action)):
                after[row, action, k], chance[row, action, k] = number[state], p
                reward[row, action, k] = earned
    told = tuple({"at": json_of(state)} for state in states)
    return TabularModel(after, chance, reward, over, over, told)


def json_of(state: Any) -> Any:
    return [*map(json_of, state)] if isinstance(state, tuple) else state


def tuple_of(state: Any) -> Any:
    return tuple(map(tuple_of, state)) if isinstance(state, list) else state


class Played(gym.Env):
    """A game as Gymnasium plays it; an observation is the number of the state."""

    def __init__(self, game: Game, max_steps: int = 100) -> None:
        self.game, self.max_steps = game, max_steps
        self.open = [state for state in states_of(game) if not game.over(state)]
        self.observation_space = gym.spaces.Discrete(len(states_of(game)))
        self.action_space = gym.spaces.Discrete(len(game.actions))
        self.state, self.steps = self.open[0], 0

    def reset(self, *, seed=None, options=None):
        """Starts an episode, in a drawn state or in `options["state"]`."""
        super().reset(seed=seed)
        self.state, self.steps = self.open[self.np_random.integers(len(self.open))], 0
        if options and "state" in options:
            self.state = tuple_of(options["state"]["at"])
        return self.number, {}

    @property
    def number(self):
        """Of the state."""
        return states_of(self.game).index(self.state)

    def step(self, action):
        """Plays an action."""
        outcomes = self.game.after(self.state, int(action))
        drawn = self.np_random.choice(len(outcomes), p=[p for p, _, _ in outcomes])
        _, self.state, reward = outcomes[drawn]
        self.steps += 1
        over = self.game.over(self.state)
        return self.number, reward, over, self.steps >= self.max_steps and not over, {}

    def text_view(self):
        """What the game tells of itself."""
        told = {
            "get_state": lambda env: {"at": json_of(env.unwrapped.state)},
            "set_state": lambda env, state: env.reset(options={"state": state}),
            "states": lambda env: [{"at": json_of(state)} for state in env.unwrapped.open],
            "model": lambda env: model_of(env.unwrapped.game),
            "success": every_ending,
        }
        wanted = {"model": [*told], "states": [*told][:3] + ["success"], "nothing": ["success"]}
        return TextView(
            self.game.actions,
            "{words}.{feedback}",
            lambda env, *_: {"words": env.unwrapped.game.words(env.unwrapped.state)},
            brief="{words}",
            **{name: told[name] for name in wanted[self.game.tells]},
        )


MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
SIDES = ("up", "right", "down", "left")


def walked(size, cell, action):
    x, y = (place + by for place, by in zip(cell, MOVES[action], strict=True))
    return (x, y) if 0 <= x < size and 0 <= y < size else cell


def windy(cell, action):
    there = walked(5, cell, action)
    cells = ((0.7, there), (0.3, walked(5, there, 0)))
    return [(p, cell, 1.0 if cell == (4, 4) else 0.0) for p, cell in cells]


def slid(board, action):
    hole, (right, down) = board.index(0), MOVES[action]
    x, y = hole % 3 + right, hole // 3 + down
    if not (0 <= x < 3 and 0 <= y < 2):
        return [(1.0, board, -1.0)]
    tiles = [*board]
    tiles[hole], tiles[3 * y + x] = tiles[3 * y + x], 0
    return [(1.0, tuple(tiles), -1.0)]


def switched(lights, action):
    near = {action} | {3 * y + x for x, y in (
        (action % 3 + right, action // 3 + down) for right, down in MOVES
    ) if 0 <= x < 3 and 0 <= y < 3}  # fmt: skip
    after = tuple(light ^ (cell in near) for cell, light in enumerate(lights))
    return [(1.0, after, float(not any(after)))]


def pushed(place, action):
    (me, box), there = place, walked(4, place[0], action)
    if there == box:
        beyond = walked(4, box, action)
        there, box = (me, box) if beyond == box else (there, beyond)
    return [(1.0, (there, box), 1.0 if box == (3, 3) else 0.0)]


def collected(place, action):
    cell, taken = place
    there = walked(4, cell, action)
    coin = not taken and there == (0, 3)
    return [(1.0, (there, taken or coin), 5.0 * coin + (there == (3, 0)))]


def moved_disc(pegs, action):
    start, end = [(a, b) for a, b in product(range(3), repeat=2) if a != b][action]
    here = [disc for disc in range(3) if pegs[disc] == start]
    there = [disc for disc in range(3) if pegs[disc] == end]
    if not here or (there and there[0] < here[0]):
        return [(1.0, pegs, -1e-4)]
    return [(1.0, tuple(end if d == here[0] else peg for d, peg in enumerate(pegs)), -1e-4)]


def dial(count):
    def turned(state, action):
        right = action == (7 * state[0] + 3) % count
        return [(1.0, (state[0], 1) if right else state, 0.0 if right else -1e4)]

    actions, first = (tuple(f"n{n}" for n in range(count)), tuple((n, 0) for n in range(count)))
    return Game(actions, first, turned, lambda s: s[1] == 1, lambda s: f"code {s[0]}")


def ladder(rung, action):
    if action == 0:
        return [(1.0, min(rung + 1, 6), 1.0 if rung == 5 else 0.0)]
    return [(0.5, min(rung + 2, 6), 1.0 if rung >= 4 else 0.0), (0.5, 0, 0.0)]


def poured(jugs, action):
    a, b = jugs
    into_b, into_a = min(a, 5 - b), min(b, 3 - a)
    after = [(3, b), (a, 5), (0, b), (a, 0), (a - into_b, b + into_b), (a + into_a, b - into_a)]
    return [(1.0, after[action], float(4 in after[action]))]


def stepped(cell, action):
    there = max(0, cell + (1 if action else -1))
    return [(1.0, there, float(there == 9))]


def rooms(pit=None, coin=None, wind=0.0, tells="model"):
    """Six cells in a row, the last of which is the way out, and where no action fails but by wind.

    From the pit on nothing leads out; the coin, in the first cell, is taken once for so much.
    """

    def after(place, action):
        cell, taken = place
        reward, here = 0.0, [(wind, place, 0.0)] if wind else []
        if action == 2 and cell != pit:
            pays = coin is not None and not taken and cell == 0
            taken, reward = int(taken or pays), float(coin) if pays else 0.0
        elif cell != pit:
            cell = max(0, cell + (1 if action else -1))
            reward = float(cell == 5)
        return [*here, (1.0 - wind, (cell, taken), reward)]

    first = tuple((cell, taken) for cell in range(5) for taken in range(1 + bool(coin)))
    actions, words = ("left", "right", "take"), named("Cell", "coin")
    return Game(actions, first, after, lambda place: place[0] == 5, words, tells)


def named(*names):
    return lambda state: ", ".join(f"{n} {v}" for n, v in zip(names, state, strict=True))


POURS = ("fill a", "fill b", "empty a", "empty b", "a into b", "b into a")
PEGS = tuple(f"{a} to {b}" for a, b in product("abc", repeat=2) if a != b)
GAMES = {
    "WindyGrid": Game(SIDES, ((0, 0),), windy, lambda s: s == (4, 4), named("x", "y")),
    "Puzzle": Game(
        SIDES, ((1, 2, 3, 4, 5, 0), (1, 2, 3, 4, 0, 5)), slid, lambda s: s == (1, 2, 3, 4, 5, 0),
        lambda s: " ".join(map(str, s)),
    ),
    "LightsOut": Game(
        tuple(f"press {n}" for n in range(1, 10)), ((1,) * 9,), switched, lambda s: not any(s),
        lambda s: " ".join("-o"[light] for light in s),
    ),
    "Box": Game(
        SIDES, (((0, 0), (1, 1)), ((0, 0), (2, 1)), ((3, 0), (1, 2))), pushed,
        lambda s: s[1] == (3, 3), lambda s: f"you {s[0][0]} {s[0][1]} box {s[1][0]} {s[1][1]}",
    ),
    "Coin": Game(
        SIDES, (((1, 1), False),), collected, lambda s: s[0] == (3, 0),
        lambda s: f"{s[0][0]} {s[0][1]} {'rich' if s[1] else 'poor'}",
    ),
    "Hanoi": Game(PEGS, ((0, 0, 0),), moved_disc, lambda s: s == (2, 2, 2),
                  lambda s: " ".join("abc"[peg] for peg in s)),
    "Dial30": dial(30),
    "Dial100": dial(100),
    "Ladder": Game(("step", "jump"), (0,), ladder, lambda s: s == 6, lambda s: f"rung {s}"),
    "Jugs": Game(POURS, ((0, 0),), poured, lambda s: 4 in s, named("a", "b"), "states"),
    "Corridor": Game(
        ("links", "rechts"), (0,), stepped,
        lambda s: s == 9, lambda s: f"Zelle {s}", "nothing",
    ),
}  # fmt: skip
for game in GAMES:
    gym.register(f"others/{game}-v0", partial(Played, GAMES[game]))

BLACKJACK = TextView(
    ("stick", "hit"),
    "You hold {mine}, the dealer shows {dealer}.{feedback}",
    lambda env, observation, info: {"mine": observation[0], "dealer": observation[1]},
)
gym.register("others/Blackjack-v0", lambda: LanguageEnv(gym.make("Blackjack-v1"), BLACKJACK))
