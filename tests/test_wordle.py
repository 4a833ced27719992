"""Wordle: LMRL-Gym's rules and texts, against a second implementation, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lactchain import ConfigError, DataError, EnvironmentConfig, language_env, make_language_env
from lactchain_extras.wordle.env import CLUES_TEMPLATE, Wordle, clues
from lactchain_extras.wordle.words import board_text, pattern_marks, read_board, word_tables

WORDS = ("shire", "shirt", "geese", "eerie", "level", "lever", "creep", "motto")
LONG = Wordle().tables.words
FEW = LONG[::20]


def spoken(words=WORDS, **kwargs):
    """A game that has begun."""
    kwargs = {"words": words, **kwargs}
    env = language_env("lactchain/Wordle-v0", kwargs, extractor="utterance")
    env.reset()
    return env


def state(**marks):
    return {"state": {"guesses": list(marks), "feedback": list(marks.values())}}


# --- a second implementation: what is known of each letter in each place -------------------------


def letter_fits(letter, places, word):
    if all(known == "possible" for known in places):
        return True
    if all(known == "not here" for known in places):
        return letter not in word
    for known, at in zip(places, word, strict=True):
        if (known == "here" and at != letter) or (known == "not here" and at == letter):
            return False
    return letter in word


def fitting_by_letters(guesses, hidden, words):
    knowledge = {letter: ["possible"] * 5 for letter in "abcdefghijklmnopqrstuvwxyz"}
    for guess in guesses:
        for place, letter in enumerate(guess):
            if hidden[place] == letter:
                knowledge[letter][place] = "here"
            elif letter in hidden:
                knowledge[letter][place] = "not here"
            else:
                knowledge[letter] = ["not here"] * 5
    return [w for w in words if all(letter_fits(c, at, w) for c, at in knowledge.items())]


words_of_few_letters = st.text("aes", min_size=5, max_size=5) | st.sampled_from(LONG)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(words_of_few_letters, min_size=3, max_size=40, unique=True),
    st.lists(words_of_few_letters, min_size=1, max_size=5),
    st.data(),
)
def test_what_fits_is_what_the_knowledge_of_letters_allows(words, guesses, data):
    tables = word_tables(tuple(words))
    hidden = data.draw(st.sampled_from(words))
    number = words.index(hidden)
    feedback = [pattern_marks(int(tables.patterns_of(guess)[number])) for guess in guesses]
    fits = tables.fitting(guesses, feedback)
    found = [word for word, fit in zip(words, fits, strict=True) if fit]
    assert found == fitting_by_letters(guesses, hidden, words)


def test_a_transcript_of_a_game():
    env = spoken(("shire", "shirt", "motto"))
    assert env.reset(seed=0)[0] == "Wordle:\n"
    env.reset(options=state(motto="bbyyb"))  # a t, but in neither place
    text, *told, info = env.step("s h i r e\n")
    assert text == "Wordle:\nm o t t o\nb b y y b\ns h i r e\ng g g g b\n"
    assert told == [-1, False, False] and info["success"] is False
    text, *told, info = env.step("s h i r t")
    assert text.endswith("s h i r t\ng g g g g\n")
    assert told == [0, True, False] and info["success"]


def test_success_at_guess_n_returns_minus_n_plus_one_and_failure_minus_six():
    env = spoken(("shire",))
    assert env.step("s h i r e\n")[1:3] == (0, True)
    env.reset()
    assert env.step("level")[1] == -1 and env.step("s h i r e\n")[1:3] == (0, True)
    env.reset()
    outcomes = [env.step("what?\n") for _ in range(6)]
    assert [step[1:3] for step in outcomes] == [(-1, False)] * 5 + [(-1, True)]
    assert not outcomes[-1][-1]["success"] and not outcomes[-1][3]


@pytest.mark.parametrize(("said", "shown"), [
    ("s h o u t\n", "s h o u t"),  # not in the list
    ("s h i r\n", "s h i r"), ("S H I R E\n", "S H I R E"), ("", ""), ("a\nb é", "a b ?"),
])  # fmt: skip
def test_an_invalid_guess_uses_up_a_try_and_tells_nothing(said, shown):
    env = spoken(invalid_reward=-10)
    text, reward, terminated, _, info = env.step(said)
    assert (text, reward, terminated) == (f"Wordle:\n{shown}\n\n", -10, False)
    assert info["invalid_action"] and env.env.unwrapped.fits.all()
    assert info["state"] == {"guesses": [shown.replace(" ", "")], "feedback": [""]}


@pytest.mark.parametrize("letters_apart", [True, False])
@pytest.mark.parametrize("said", [" shi re ", "shire\n", "s h i r e"])
def test_spaces_between_letters_do_not_matter(said, letters_apart):
    env = spoken(("shire",), letters_apart=letters_apart, invalid_reward=-10)
    _, reward, terminated, _, info = env.step(said)
    assert (reward, terminated, info["success"]) == (0, True, True)
    assert not info["invalid_action"]
    assert info["executed"] == ["s h i r e" if letters_apart else "shire"]


def test_a_word_in_another_format_than_was_asked_for_is_an_invalid_guess():
    env = language_env("lactchain/Wordle-v0", {"words": ("shire",)})
    env.reset()
    text, reward, terminated, _, info = env.step("shire")
    assert (text, reward, terminated) == ("Wordle:\ns h i r e\n\n", -1, False)
    assert info["invalid_action"] and env.step('["s h i r e"]')[2]


def test_words_outside_the_list_are_marked_where_that_is_allowed():
    env = spoken(("shire",), require_words=False)
    text, reward, *_ = env.step("s h o u t\n")
    assert (text, reward) == ("Wordle:\ns h o u t\ng g b b b\n", -1)
    assert env.step("s h o\n")[0].endswith("s h o\n\n")


def test_hostile_text_stays_in_the_space_of_observations():
    env, over = spoken(), False
    while not over:
        text, _, over, *_ = env.step("\ud800💥</s>\x1b[31m" * 10_000)
        assert text in env.observation_space


def test_the_hidden_word_is_drawn_anew_among_those_that_fit():
    env = Wordle(words=("shire", "shirt", "geese", "motto"))
    env.reset(seed=0)
    marks = []
    for _ in range(3000):
        env.reset()
        env.step(0)
        marks.append(env.feedback[0])
    shares = {mark: marks.count(mark) / len(marks) for mark in set(marks)}
    # by shire itself, shirt, geese (s elsewhere, e in its place) and motto
    assert {*shares} == {"ggggg", "ggggb", "ybbbg", "bbbbb"}
    assert all(0.21 < share < 0.29 for share in shares.values())


def test_the_numbers_tell_what_the_text_tells():
    env = Wordle(words=WORDS)
    observation, info = env.reset(options=state(motto="bbbbb", creep="bbgyb"))
    knowledge = observation[:-1].reshape(26, 5)
    assert knowledge[ord("e") - ord("a")].tolist() == [1, 1, 2, 0, 1]
    assert knowledge[ord("c") - ord("a")].tolist() == [0] * 5
    assert knowledge[ord("z") - ord("a")].tolist() == [1] * 5
    assert (observation[-1], info["num_fitting"]) == (2, 1)  # geese
    yellow = Wordle(words=WORDS).reset(options=state(shirt="ybbbb"))[0][:-1].reshape(26, 5)
    assert yellow[ord("s") - ord("a")].tolist() == [0, 1, 1, 1, 1]


def test_the_clues_say_what_the_knowledge_says():
    env = Wordle(words=WORDS)
    env.reset(options=state(shirt="ybbbb", creep="bbgyb"))
    assert clues(env.knowledge) == {"known": "E3", "elsewhere": "e4 s1", "absent": "C H I P R T"}


def test_no_two_states_of_knowledge_have_the_same_clues():
    """Games with the same clues have the same words left, however they came there."""
    rng = np.random.default_rng(0)
    env, left = Wordle(words=FEW), {}
    for game in range(300):
        env.reset(seed=game)
        for _ in range(3):
            env.step(int(rng.integers(len(FEW))))
            said = tuple(clues(env.knowledge).values())
            assert (left.setdefault(said, env.fits.copy()) == env.fits).all()


def test_clues_may_stand_for_the_board():
    env = language_env("lactchain/Wordle-v0", {"words": WORDS}, template=CLUES_TEMPLATE)
    assert env.reset(seed=0)[0] == "6 tries\nabsent -\nelsewhere -\nknown -\n"
    text, _ = env.reset(options=state(shirt="ggggb"))
    assert text == "5 tries\nabsent T\nelsewhere -\nknown H2 I3 R4 S1\n"


def test_a_board_can_be_read_back():
    guesses, feedback = ["shire", "x?", "motto"], ["byggb", "", "ggggg"]
    assert read_board(board_text(guesses, feedback)) == (guesses, feedback)
    assert read_board("Play!\n" + board_text([], [])) == ([], [])
    for text in ("", "motto", "Wordle:\nm o t t o\n"):
        with pytest.raises(ValueError, match="observation: expected a game"):
            read_board(text)


@pytest.mark.parametrize(("rows", "message"), [
    (["shire", "shires"], "row 2: expected five letters a-z, got 'shires'"),
    (["shire", "Shirt"], "row 2: expected five letters a-z, got 'Shirt'"),
    (["naïve", ""], "row 1: expected five letters a-z"),
    (["shire", "motto", "shire"], "row 3: 'shire' stands in row 1 already"),
    ([], "expected words, got none"),
])  # fmt: skip
def test_lists_of_other_words_are_refused(rows, message, tmp_path):
    with pytest.raises(ConfigError, match=f"kwargs: .*words: {message}"):
        make_language_env(EnvironmentConfig("lactchain/Wordle-v0", {"words": rows}))
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match=f"words.txt: {message}"):
        Wordle(words=str(path))


@pytest.mark.parametrize("path", ["nowhere.txt", "", "."])
def test_a_list_that_is_not_there_is_refused(path):
    with pytest.raises(DataError, match=f"Errno .*{path}"):
        Wordle(words=path)


@pytest.mark.parametrize(("kwargs", "message"), [
    ({"words": 5}, "words: expected a file, or a list of words, got 5"),
    ({"words": [5]}, "words: row 1: expected five letters a-z, got 5"),
    ({"num_tries": 0}, "num_tries: expected a whole number of at least 1, got 0"),
    ({"num_tries": 2.5}, "num_tries: expected a whole number"),
])  # fmt: skip
def test_arguments_of_no_game_are_refused(kwargs, message):
    with pytest.raises(ConfigError, match=f"kwargs: lactchain/Wordle-v0 .*{message}"):
        make_language_env(EnvironmentConfig("lactchain/Wordle-v0", kwargs))


MARKS = [{"shire": marks} for marks in ("ggg", "ggggx", "ggggg", None)]
MARKS += [{"shi": "bbbbb"}, {"a\nb": ""}, {5: "bbbbb"}]
MARKS += [dict.fromkeys(("shire", "level", "motto"), "bbbbb")]
NO_GAMES = [{"guesses": [*marks], "feedback": [*marks.values()]} for marks in MARKS]
NO_GAMES += [{}, [], None, {"guesses": ["shire"], "feedback": []}]


@pytest.mark.parametrize("game", NO_GAMES)
def test_states_of_no_game_and_numbers_of_no_word_are_refused(game):
    env = Wordle(words=WORDS)
    with pytest.raises(ValueError, match="state: expected"):
        env.reset(options={"state": game})
    env.reset(seed=0)
    for action in (-1, len(WORDS)):
        with pytest.raises(ValueError, match="action: expected one of"):
            env.step(action)


@pytest.mark.parametrize(("guess", "hidden", "marks"), [
    ("shirt", "shire", "ggggb"), ("geese", "eerie", "bgybg"), ("eerie", "level", "ygbby"),
    ("motto", "motto", "ggggg"), ("level", "motto", "bbbbb"),
])  # fmt: skip
def test_letters_are_marked_one_by_one_and_repeats_not_counted(guess, hidden, marks):
    tables = word_tables(WORDS)
    assert pattern_marks(int(tables.patterns_of(guess)[tables.index[hidden]])) == marks
