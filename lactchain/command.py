"""The command `lactchain`: the scripts as sub-commands, and their configurations by name.

lactchain quickstart
lactchain run_pipeline --config tiny
lactchain report runs/run_pipeline_tiny
accelerate launch -m lactchain train_critic --config gridworld_tiny
"""

import ast
import difflib
import functools
import json
import os
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from lactchain import plugins
from lactchain.config.yaml_files import CONFIGS, SHIPPED, shipped_settings, with_files
from lactchain.errors import ConfigError, LactChainError
from lactchain.runs.console import guard_streams, leave_streams

USAGE = """usage: lactchain COMMAND [--config NAME|FILE ...] [--key value ...]

{commands}

`lactchain quickstart` runs the whole recipe with tiny models on two processes: a few minutes.
`lactchain COMMAND --help` shows what a command reads, writes, and lets you set. `lactchain configs`
prints the folder of the shipped configurations, `lactchain --version` the version, and
`eval "$(lactchain completion)"` lets bash complete the names of commands and configurations.
"""
COMPLETION = """_lactchain() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" names="" files="-f"
  if [ "$COMP_CWORD" = 1 ]; then names="{commands}" files=""
  elif [ "${{COMP_WORDS[COMP_CWORD - 1]}}" = --config ]; then
    names=$(basename -s .yaml "{configs}/${{COMP_WORDS[1]}}"/*.yaml)
  fi
  COMPREPLY=($(compgen $files -W "$names" -- "$word"))
}}
complete -o filenames -F _lactchain lactchain
"""
FIRST = {"report": "--run_dir", "doctor": "--url", "panel": "--environment.id"}
"""The option that a command's first word is of; else it is a configuration."""
MANY = {"compare": "--runs"}
"""The option that all first words are of."""
QUICKSTART = ("--config", "tiny", "--run.run_dir", "runs/quickstart")
"""What `quickstart` says to `run_pipeline`, unless it is given another configuration."""
BEFORE = {
    "quickstart": """The whole recipe with tiny models on the 4x4 grid, on two processes of the CPU.

lactchain quickstart
lactchain quickstart --run.seed 1 --run.run_dir runs/quickstart_seed_1
lactchain quickstart smollm2     (another configuration, into its own folder)

Without another configuration it writes into runs/quickstart. It takes all that
`lactchain run_pipeline` does, which says:

""",
    "compare": "lactchain compare RUN RUN [RUN ...]\n\n",
}
"""What the help of a command says before the words of its script."""


def main() -> None:
    """Runs the command that the arguments of the process name."""
    name, *arguments = sys.argv[1:] or ["--help"]
    texts = {"-h": overview, "--help": overview, "configs": lambda: f"{CONFIGS}\n"}
    texts["--version"] = lambda: f"{metadata.version('lactchain')}\n"
    texts["completion"] = completion
    guard_streams()
    if name in texts:
        sys.stdout.write(texts[name]())
        leave_streams()
        return
    try:
        run(name, arguments)
    except LactChainError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)


def overview() -> str:
    """The commands, a line each."""
    lines = (f"  {name:17} {says(file)}" for name, file in scripts().items())
    return USAGE.format(commands="\n".join(lines))


def scripts() -> dict[str, Path]:
    """The file of each script, by its name."""
    return {file.stem: file for file in sorted((SHIPPED / "scripts").glob("*.py"))}


def script(name: str) -> Path:
    """The file of a script; `ConfigError` with the nearest names where there is none."""
    found = scripts()
    if name not in found:
        near = difflib.get_close_matches(name, [*found, "quickstart"], n=3)
        mend = f"did you mean {' or '.join(near)}?" if near else "`lactchain` alone lists them"
        raise ConfigError(f"{name}: no such command; {mend}")
    return found[name]


def says(file: Path) -> str:
    """What a script does: the first line of its docstring, read and not run."""
    return ast.get_docstring(ast.parse(file.read_text("utf-8"))).partition("\n")[0]


def completion() -> str:
    """What bash evaluates to complete commands, configurations and files."""
    commands = " ".join(["quickstart", "configs", "completion", *scripts()])
    return COMPLETION.format(commands=commands, configs=CONFIGS)


def run(name: str, arguments: Sequence[str]) -> None:
    """Runs a script as a sub-command; `ConfigError` for no such command or configuration."""
    from lactchain.runs.process import launch

    is_quickstart = name == "quickstart"
    stage = "run_pipeline" if is_quickstart else name
    file, words = script(stage), arguments_of(stage, arguments)
    if is_quickstart and not any(word.startswith("--config") for word in words):
        words = [*arguments_of(stage, QUICKSTART), *words]
    sys.argv = [f"lactchain {name}", *words]
    # A script has a `main`, and the class of its settings.
    try:
        defined = runpy.run_path(str(file))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lactchain_extras":
            raise
        raise ConfigError(
            f"{name}: it is a command of lactchain_extras, which is missing"
        ) from None
    (config_class,) = (value for key, value in defined.items() if key.endswith("Config"))
    start = _launch_two if is_quickstart and "RANK" not in os.environ else launch
    start(defined["main"], config_class, BEFORE.get(name, "") + usage(stage, defined["__doc__"]))


def _launch_two(main: Callable, config_class: type, usage: str) -> None:
    """As `launch`, on two processes; this one reads the settings first, so mistakes start none."""
    from lactchain.runs.process import launch

    codes = []

    @functools.wraps(main)  # whose module the help describes
    def main_of_two(config: Any) -> None:
        run_ranks = plugins.required("ranks", "quickstart, or `run_pipeline tiny` on one process")
        codes.append(run_ranks([sys.executable, *sys.orig_argv[1:]], count=2))

    launch(main_of_two, config_class, usage)
    sys.exit(codes[0])


def arguments_of(name: str, words: Sequence[str]) -> list[str]:
    """The arguments that a script takes in the place of a command's; `ConfigError` as `run`."""
    if name in MANY:
        first = [*takewhile(lambda word: not word.startswith("-"), words)]
        words = [*([MANY[name], json.dumps(first)] if first else []), *words[len(first) :]]
    elif words and not words[0].startswith("-"):
        words = [FIRST.get(name, "--config"), *words]
    return with_files(name, words)


def usage(name: str, docstring: str) -> str:
    """What a script says of itself, with its commands as sub-commands."""
    for written, meant in (
        (r"python scripts/(\w+)\.py", r"lactchain \1"),
        (r"scripts/(\w+)\.py", r"-m lactchain \1"),
        (r"--config configs/\w+/(\w+)\.yaml", r"--config \1"),
        (r"configs/accelerate", '"$(lactchain configs)"/accelerate'),
    ):
        docstring = re.sub(written, meant, docstring)
    names = ", ".join(shipped_settings(name))
    short = "" if name in {*FIRST, *MANY} else " (as the first word it needs no --config)"
    return f"{docstring}\n--config takes a file, or one of: {names}{short}\n"
