"""Configuration: what is set wins in order, what is wrong is named, what is written reads back."""

import json
import re
import resource
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import run_setups
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lactchain import ConfigError, dump, parse
from lactchain.config import settings
from lactchain.config.parsing import differences, keys, take_options, typed_modules


@dataclass(frozen=True)
class Config(run_setups.Config):
    """A script's configuration, two levels deep."""

    environment: settings.EnvironmentConfig = field(default_factory=settings.EnvironmentConfig)
    """The world."""
    actor: settings.ActorConfig = field(
        default_factory=lambda: settings.ActorConfig(lora=settings.LoraSettings(r=4))
    )
    """The actor."""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_defaults_lose_to_files_and_files_to_the_command_line(tmp_path):
    first = write(tmp_path / "a.yaml", "run: {seed: 1, threads: 2}\ncritic: {gamma: 0.5}")
    second = write(tmp_path / "b.yaml", "run: {seed: 2}")
    config = parse(Config, ["--config", first, "--config", second, "--run.threads", "4"])
    assert (config.run.seed, config.run.threads, config.critic.gamma) == (2, 4, 0.5)
    assert config.environment == settings.EnvironmentConfig()
    assert parse(Config, []) == Config()  # which knows nothing of the command before


def test_scientific_notation_is_a_number(tmp_path):
    text = "training: {learning_rate: 1e-5, extra: {adam_epsilon: 1.5e3}}"
    words = ["--config", write(tmp_path / "a.yaml", text), "--training.extra.adam_beta2", "95e-2"]
    training = parse(Config, words).training
    assert training.learning_rate == 1e-5
    assert training.extra == {"adam_epsilon": 1500.0, "adam_beta2": 0.95}


def test_an_optional_part_is_opened_and_closed_from_either_side(tmp_path):
    assert parse(Config, ["--critic.lora.r", "8"]).critic.lora == settings.LoraSettings(r=8)
    assert parse(Config, ["--actor.lora.alpha", "3"]).actor.lora == settings.LoraSettings(4, 3.0)
    assert parse(Config, ["--actor.lora", "null"]).actor.lora is None
    closed = write(tmp_path / "a.yaml", "run: null\nactor: {lora: null}")
    config = parse(Config, ["--config", closed, "--run.run_dir", "x"])
    assert (config.actor.lora, config.run) == (None, settings.RunConfig(run_dir="x"))
    opened = write(tmp_path / "b.yaml", "critic: {lora: {r: 8}}")
    lora = parse(Config, ["--config", opened, "--critic.lora.alpha", "3"]).critic.lora
    assert lora == settings.LoraSettings(r=8, alpha=3.0)


ALIAS = "expected the value itself, got its alias *a"
LEVELS = "expected at most 50 levels, got more"
TAG = "expected YAML, got a value that is not what"
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n"
BOMB += "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi"))


@pytest.mark.parametrize(("given", "expected"), [
    ("--critic.gama 1", "critic.gama: no such key; did you mean critic.gamma"),
    ("--seed 1", "seed: no such key; did you mean run.seed"),
    ("--critic null", "critic: expected settings below it, such as --critic.NAME, got null"),
    ("--config=", "--config: expected the name of a configuration, or a file, got nothing"),
    ("--run.threads 1.0", "run.threads: expected int or null, got 1.0"),
    ("--actor.strategy founder", "got 'founder'; did you mean founding?"),
    ("--actor.strategy xyzzy", "actor.strategy: expected one of none, direct, "),
    ("run: {report_to: wandb}", "run.report_to: expected a list, such as '[first, second]'"),
    ("critic: {lora: {rr: 1}}", "critic.lora.rr: no such key; did you mean critic.lora.r"),
    ("run: {seed: true}", "run.seed: expected int, got True"),
    ("--critic.lora.r x", "critic.lora.r: expected int, got x"),
    ("--critic.mode q", "critic.mode: expected one of value, action_value, got q"),
    ("--critic.gamma 3", "critic.gamma: expected a number in (0, 1], got 3.0"),
    ("--run.report_to [mlflow]", "run.report_to: expected names of ['tensorboard', "),
    ("--training.max_steps 0", "training.max_steps: expected -1 or more than 0, got 0"),
    ("[1, 2]", "expected a YAML mapping, got list"),
    ("--config nowhere.yaml", "nowhere.yaml: expected a YAML file"),
    ("--stray stray", "stray"),
    *(
        (f"--training.extra.logging_steps {odd}", "logging_steps: expected a whole number, at")
        for odd in ("0", "-1", "1.5", "abc", "null", "true")
    ),
    pytest.param(BOMB, ALIAS, id="aliases of aliases"),
    ("run: &a\n  run_dir: *a\n", ALIAS),
    (f"run: {'[' * 51}{']' * 51}\n", LEVELS),
    pytest.param(f"run: {{seed: 1{'0' * 5000}}}\n", "expected YAML, got ", id="a huge number"),
    ("run: 1\n", "run: expected settings below it, such as --run.NAME"),
    ("actor: null\n", "actor: expected a value, got null"),
    ("run: {seed: null}\n", "run.seed: expected a value, got null"),
    ("run: {seed: !!timestamp x}\n", TAG),
    ("a: [", "expected YAML"),
    ("run: !!python/object/apply:os.getcwd []\n", "expected YAML, got could not determine"),
])  # fmt: skip
def test_a_mistake_is_one_line_and_names_the_key_where_there_is_one(tmp_path, given, expected):
    """In a file, or on the command line."""
    argv = given.split() if given[:2] == "--" else ["--config", write(tmp_path / "a.yaml", given)]
    with pytest.raises(ConfigError, match="^[^\n]*$") as error:
        parse(Config, argv)
    assert expected in str(error.value)


def test_a_dry_run_is_asked_for_on_the_command_line_and_is_no_setting():
    for name in ("--dry_run", "--dry-run"):
        said, others = take_options([name, "--run.seed", "3"])
        assert (said.dry_run, said.inexact, others) == (True, False, ["--run.seed", "3"])
    assert not take_options(["--run.seed", "3"])[0].dry_run
    assert parse(Config, ["--run.seed", "3", "--dry_run"]).run.seed == 3


def test_modules_are_named_on_the_command_line_and_are_no_setting():
    words = ["--import", "a,b.c", "--run.seed", "3", "--import=d"]
    said, others = take_options([*words, "--run.run_dir", "--x y", "-1", "-h"])
    assert (said.modules, said.workers) == (["a", "b.c", "d"], [])
    assert others == ["--run.seed", "3", "--run.run_dir", "--x y", "-1", "-h"]
    assert parse(Config, words).run.seed == 3
    for wrong in (["--import"], ["--import="], ["--import", "-"], ["--import", "--run.seed", "3"]):
        with pytest.raises(ConfigError, match="--import: expected the name of a module, got none"):
            parse(Config, wrong)
    typed = ["--environment.id", "a.b:x/Y-v0", "--x.environment.id=c:Z-v1", "--config", "d:e.yaml"]
    assert typed_modules([*typed, "--environment.id", "Taxi-v4"]) == ["a.b", "c"]
    assert typed_modules([]) == []


def test_help_says_what_each_field_means(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(Config, ["--help"], description="First line.\n\n  kept indentation")
    shown = capsys.readouterr().out
    assert "First line.\n\n  kept indentation" in shown
    told = " ".join(shown.split())
    assert "Discount, in (0, 1]." in told and "number in (0, 1]" in told
    assert "Annotated" not in told


def test_differences_are_dotted_keys_with_both_values():
    a = {"x": 1, "lora": None, "same": {"y": [1, 2]}}
    b = {"x": 2, "lora": {"r": 8}, "same": {"y": (1, 2)}, "absent": None}
    assert differences(a, b) == {"x": (1, 2), "lora.r": (None, 8)}
    assert differences(a, a) == {}


def test_a_tracker_that_is_not_installed_is_refused_with_the_command(monkeypatch):
    monkeypatch.setattr(settings, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"report_to: .*pip install 'lactchain\[wandb\]'"):
        settings.RunConfig(report_to=["wandb"])


ALIASES = "{" + BOMB.replace("\n", ", ") + "}"
TEXTS_THAT_ARE_MORE = {
    "aliases": (ALIASES, re.escape(ALIAS)),
    "deep": ("[" * 60_000, LEVELS),  # a reader in C dies of it
    "long": ("[" + "1, " * 20_000 + "]", "expected at most 20,000 values, got more"),
    "no date": ("[!!timestamp x]", TAG),
    "longer": ("x" * 600_000, "expected at most 500,000 characters, got 600,0"),
}


@pytest.mark.parametrize("key", ["run.seed", "critic.lora"])
@pytest.mark.parametrize(("text", "message"), TEXTS_THAT_ARE_MORE.values(), ids=TEXTS_THAT_ARE_MORE)
def test_texts_that_no_value_can_be_are_refused_at_once(text, message, key, tmp_path):
    group, name = key.split(".")
    path = write(tmp_path / "config.yaml", json.dumps({group: {name: text}}))
    for argv in ([f"--{key}={text}"], ["--config", path]):
        with pytest.raises(ConfigError, match=message):
            parse(Config, argv)


@pytest.mark.parametrize("value", [
    {"critic": {"lora": "CODE.A"}}, {"critic": {"lora": {"class_path": "CODE.A"}}},
    {"critic": "CODE.A"}, {"critic": "{lora: CODE.A}"}, {"run": "OTHER"},
    {"training": {"extra": {"x": {"class_path": "CODE.A"}}}},
    {"training": {"extra": {"x": "{class_path: CODE.A}"}}},
    {"run": {"report_to": [{"class_path": "CODE.A"}]}}, {"config": "OTHER"}, {"help": "x"},
], ids=str)  # fmt: skip
def test_a_file_of_settings_imports_nothing_and_reads_no_other(value, tmp_path, monkeypatch):
    (tmp_path / "code_of_others.py").write_text("class A: pass")
    other = write(tmp_path / "other.yaml", "seed: 3")
    monkeypatch.syspath_prepend(tmp_path)
    text = json.dumps(value).replace("CODE", "code_of_others").replace("OTHER", other)
    refused = "expected settings|(class_path|config|help): no such key"
    with pytest.raises(ConfigError, match=refused):
        parse(Config, ["--config", write(tmp_path / "config.yaml", text)])
    assert "code_of_others" not in sys.modules


FOREIGN = "foreign_code"
HOSTILE = [
    "", "null", "1e-5", "{x}", "{", "[", "- a", "a: b", "*a", "&a", "!!int x", "\x00", "\ud800",
    "\u202e", "1:30", "%s", "--", "--help ", "!!python/name:os", f"{FOREIGN}.Thing", "/etc/passwd",
    f"{{class_path: {FOREIGN}.Thing}}", f"{FOREIGN}:World-v0", "&a [*a]", "x" * 5_000, "9" * 5_000,
    "[" * 60_000, "{a: " * 60_000, "- " * 60_000, "? " * 10_000, "1" + "_" * 100_000, ALIASES,
    "1:" * 50_000, "# " * 300_000, "[" + "1," * 90_000 + "]", "'" + "a" * 400_000 + "'",
]  # fmt: skip
"""What somebody may have typed, spoiled, or written on purpose."""
KEYS = [*keys(Config), "run", "actor.lora", "critic.class_path", "x", "run.seed.x"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates(),
    lambda p: st.lists(p, max_size=3) | st.dictionaries(st.text(max_size=3), p, max_size=3),
    max_leaves=8,
)
ANY = st.sampled_from(HOSTILE) | VALUES


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


GIVEN = {
    "in_file": st.dictionaries(st.sampled_from(KEYS), ANY, max_size=2),
    "typed": st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(HOSTILE)), max_size=2),
    "splice": st.none() | st.tuples(st.integers(0, 99), st.sampled_from(["\t", "\n", ": ", "["])),
}
MANY = pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@pytest.mark.parametrize("number", [80, MANY])
def test_whatever_is_given_is_settings_or_one_line_and_runs_nothing(number, tmp_path, monkeypatch):
    """Nor does it take 2 seconds, or 200 MiB."""
    (tmp_path / f"{FOREIGN}.py").write_text("class Thing:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    file, again = tmp_path / "config.yaml", tmp_path / "again.yaml"

    def parsed(in_file, typed, splice):
        file.write_bytes(as_yaml(in_file, splice).encode("utf-8", "surrogatepass"))
        words = [f"--{key}={value}" for key, value in typed]
        memory, began = peak_bytes(), time.process_time()
        try:
            config = parse(Config, ["--config", str(file), *words])
        except ConfigError as error:
            assert "\n" not in str(error) and len(str(error)) < 1_500
        else:
            again.write_text(dump(config), "utf-8", "surrogatepass")
            assert repr(parse(Config, ["--config", str(again)])) == repr(config)  # nan is nan
        assert time.process_time() - began < 2 and peak_bytes() - memory < 200 * 2**20
        assert FOREIGN not in sys.modules

    drawn = hypothesis_settings(max_examples=number, deadline=None, database=None, derandomize=True)
    drawn(given(**GIVEN)(parsed))()


def as_yaml(found, splice):
    """Nested settings, of which texts stand there without quotes, perhaps spoiled at a place."""
    nested, raw = {}, {}
    for key, value in found.items():
        if isinstance(value, str):
            raw[f"PLACE{len(raw)}"] = value
            value = [*raw][-1]
        part, _, name = key.rpartition(".")
        inside = nested.setdefault(part, {}) if part else nested
        if isinstance(inside, dict):
            inside[name] = value
    text = yaml.dump(nested)
    for place, value in raw.items():
        text = text.replace(place, value)
    return text if splice is None else text[: splice[0]] + splice[1] + text[splice[0] + 1 :]


def test_one_word_is_a_list_of_one_and_a_file_of_another_command_is_named(tmp_path):
    assert parse(Config, ["--run.report_to", "tensorboard"]).run.report_to == ["tensorboard"]
    file = write(tmp_path / "config.yaml", "zzz: 1\nrun: {sed: 1}\n")
    with pytest.raises(ConfigError, match=f"{file}: zzz and 1 more: no such keys; it looks like"):
        parse(Config, ["--config", file])
