"""Scripted policies of Maze and Wordle, and what they earn, exactly and in play."""

from functools import cache

import numpy as np
import pytest
from wordle_tree import BestWords, GameTree, InformedWords

from lactchain import EnvironmentConfig, Episode, Mixture, RandomChains, Rollouts, language_env
from lactchain_extras.maze import PARTIAL_TEMPLATE, LegalMoves, MazeTables
from lactchain_extras.stages.play import HumanPolicy
from lactchain_extras.wordle.env import ConsistentWords, Wordle
from lactchain_extras.wordle.words import SOLVED, WordTables, word_tables

MAZE = EnvironmentConfig("lactchain/Maze-v0", extractor="utterance")
FEW = [*Wordle().tables.words[::20]]
WORDLE = EnvironmentConfig("lactchain/Wordle-v0", {"words": FEW}, extractor="utterance")
ALIKE = ("light", "might", "night", "right", "sight", "fight", "eight")


def returns(config, make_policy, episodes):
    rollouts = Rollouts(config)
    played = rollouts.play(make_policy(rollouts.env), episodes(rollouts.env))
    return np.array([trajectory.episode_return for trajectory in played])


def games(count):
    return lambda env: [Episode(seed) for seed in range(count)]


def uniform_moves(tables: MazeTables) -> np.ndarray:
    """The policy (S, 4) that draws any move."""
    return np.full(tables.next_state.shape, 1 / tables.next_state.shape[1])


def legal_moves(tables: MazeTables) -> np.ndarray:
    """The policy (S, 4) that draws any move that no wall stops."""
    leads_on = tables.next_state != np.arange(len(tables.next_state))[:, None]
    return leads_on / leads_on.sum(axis=1, keepdims=True)


def maze_returns(tables: MazeTables, policy: np.ndarray, max_moves: int = 100) -> np.ndarray:
    """Expected return (N,), undiscounted, from each cell but the goal, of a policy (S, 4) of moves.

    V_0 = −1, the move that is not played any more; V_k(s) = Σ_a π(a|s) (r(s, a) + V_{k−1}(s')).
    """
    values = np.where(tables.terminal, 0.0, -1.0)
    for _ in range(max_moves):
        outcomes = tables.rewards + values[tables.next_state]
        values = np.where(tables.terminal, 0.0, (policy * outcomes).sum(axis=1))
    return values[tables.model.non_terminal]


def wordle_return(tables: WordTables, num_tries: int = 6) -> float:
    """Expected return of guessing a random word among those that fit.

    With n words that fit and t tries left, all pairs of guess g and hidden word h being equally
    likely, J_t(words) = n⁻² Σ_g Σ_{h ≠ g} (J_{t−1}(words that fit after g is marked by h) − 1).
    """

    @cache
    def expected(words: tuple[int, ...], tries: int) -> float:
        count = len(words)
        if count == 1 or tries == 0:
            return 0.0
        if tries == 1:
            return (1 - count) / count
        total = 0.0
        for patterns in tables.patterns[np.ix_(words, words)].tolist():
            groups: dict[int, list[int]] = {}
            for word, pattern in zip(words, patterns, strict=True):
                groups.setdefault(pattern, []).append(word)
            groups.pop(SOLVED)
            for fitting in groups.values():
                later = expected(tuple(fitting), tries - 1) if len(fitting) > 1 else 0.0
                total += len(fitting) * (later - 1)
        return total / count**2

    return expected(tuple(range(len(tables.words))), num_tries)


def best_wordle_return(tables: WordTables, num_tries: int = 6) -> float:
    """Expected return of the best play, by trying every guess W of the list everywhere.

    J_t(words) = max_g n⁻¹ Σ_{h ≠ g} (J_{t−1}(words that fit after g is marked by h) − 1).
    """

    @cache
    def best(words: frozenset[int], tries: int) -> float:
        if not tries:
            return 0.0
        return max(expected(guess, words, tries) for guess in range(len(tables.words)))

    def expected(guess: int, words: frozenset[int], tries: int) -> float:
        marks = {hidden: tables.patterns[guess, hidden] for hidden in words}
        total = 0.0
        for hidden in words - {guess}:
            fitting = frozenset(other for other in words if marks[other] == marks[hidden])
            total += best(fitting, tries - 1) - 1
        return total / len(words)

    return best(frozenset(range(len(tables.words))), num_tries)


def test_the_floors_of_the_maze_are_the_known_ones():
    tables = MazeTables()
    assert maze_returns(tables, uniform_moves(tables)).mean() == pytest.approx(-85.9, abs=0.05)
    assert maze_returns(tables, legal_moves(tables)).mean() == pytest.approx(-76.95, abs=0.05)
    stubborn = np.eye(4)[np.zeros(26, dtype=int)]
    assert maze_returns(tables, stubborn).min() == -101


@pytest.mark.parametrize("template", [None, PARTIAL_TEMPLATE])
def test_legal_moves_never_meet_a_wall_however_much_is_seen(template):
    seen = 1 if template is None else 40
    env = language_env(MAZE.id, template=template, extractor="utterance", history=seen)
    policy = LegalMoves(env)
    for state in env.view_states():
        text, _ = env.reset(options={"state": state})
        for seed in range(10):
            text, _, terminated, _, info = env.step(policy.act([text], [seed])[0].text)
            if terminated:
                break
            assert info["bumped"] == [False]


def assert_mean(played, exact):
    assert played.mean() == pytest.approx(exact, abs=4 * played.std() / len(played) ** 0.5)


def random_chains(env):
    return RandomChains(env.grammar)


@pytest.mark.parametrize("kind, moves", [(random_chains, uniform_moves), (LegalMoves, legal_moves)])
def test_played_returns_of_random_moves_are_the_exact_ones(kind, moves):
    kwargs = {"layout": "u", "max_moves": 12}
    layout = EnvironmentConfig("lactchain/Maze-v0", kwargs, extractor="utterance")
    tables = MazeTables("u")
    exact = maze_returns(tables, moves(tables), max_moves=12).mean()

    def from_every_cell(env):
        starts = [*enumerate(env.view_states())]
        return [Episode(1000 * n + row, state) for n in range(40) for row, state in starts]

    assert_mean(returns(layout, kind, from_every_cell), exact)


def test_played_returns_of_fitting_words_are_the_exact_ones():
    exact = wordle_return(word_tables(tuple(FEW)))
    assert_mean(returns(WORDLE, ConsistentWords, games(700)), exact)


@pytest.mark.parametrize("num_tries", [1, 2, 3, 6])
def test_the_best_play_of_wordle_is_that_of_trying_everything(num_tries):
    for start in range(4):
        tables = word_tables(tuple(sorted({*ALIKE, *Wordle().tables.words[start::66]})))
        cost, _ = GameTree(tables).best(np.arange(len(tables.words)), num_tries)
        assert -cost / len(tables.words) == pytest.approx(best_wordle_return(tables, num_tries))


def test_wordle_policies_are_ordered_by_what_they_know():
    def half_wise(env):
        return Mixture(ConsistentWords(env), random_chains(env), 1 / 3)

    kinds = (BestWords, InformedWords, ConsistentWords, half_wise, random_chains)
    earned = (returns(WORDLE, kind, games(100)).mean() for kind in kinds)
    best, informed, consistent, mixed, random = earned
    assert best >= informed > consistent > mixed > random > -6


def test_policies_refuse_other_worlds():
    grid = language_env()
    with pytest.raises(ValueError, match="world: expected a maze"):
        LegalMoves(grid)
    with pytest.raises(ValueError, match="world: expected Wordle"):
        ConsistentWords(grid)
    with pytest.raises(ValueError, match="observation: expected a sentence on walls"):
        LegalMoves(language_env(MAZE.id)).act(["somewhere"], [0])


def test_a_person_types_numbers_or_a_completion_until_it_is_legal():
    forward, left = '["move forward", "turn left", "move forward"]', '["turn left"]'
    shown, typed = [], ["", "?", "0 2", "0 1 0", left, "turn left", "[]", "1"]
    env = language_env(max_chain_length=5)
    policy = HumanPolicy(env, lambda prompt: shown.append(prompt) or typed.pop(0))
    completions = policy.act(["here"] * 4, range(4))
    assert [completion.text for completion in completions] == [forward, left, left, left]
    assert shown == ["here\n[0 move forward, 1 turn left] > "] * 8
