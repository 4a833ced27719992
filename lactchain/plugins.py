"""What other packages add: found by their entry points, never imported by name.

A package says what it adds in its pyproject.toml:

    [project.entry-points."lactchain.add_ons"]
    card = "lactchain_extras.cards.model_cards:write"

LactChain asks for these, and goes on without those that are not there:

- `card(config, run, kind, summary)` describes the weights that a stage has saved;
- `page(run_dir, under_way, anew)` draws a run folder, or tells on its page how far it is;
- `data_sets` is a module that reads pairs and episodes of others: `read(path, "pairs")` files or
  folders, and `pair_of(row, name)` a row with TRL's columns;
- `recorder(config, run)` keeps what people look at of a pipeline's rounds;
- `engines` is a module of servers that generate, and `workers` that play, in the place of this
  process;
- `explore(run)` shows a run folder in a notebook;
- `frames(run)` is what that shows, as pandas data frames;
- `inspections` is a module that reads what the recorder has left of each round;
- `memory(config, batches)` prints what the batches of a stage take, in a dry run;
- `network_mutations` are changes of classic agents' networks, by the kinds that a search draws;
- `ranks(command, count)` runs a command on several processes of this machine;
- `films` is a module that makes moving pictures of episodes, and `pixels(world)` of a state;
- `language_species` is what evolutionary search needs to know of language actors;
- `panels` is a module of numbered tasks in files, and of results on them;
- `offline_data(path)` reads the recorded transitions of other libraries;
- `values` is a module of trained values of tokens: `TrainedValues(config, tokenizer)`, by which an
  actor is guided (with `decoder`, `rank` and `record`), and `ValueModel.load(folder)`;
- `vector_envs` has numpy batches of others' environments, by their Gymnasium ids.

The group `lactchain.worlds` has functions that register Gymnasium ids, their batches, or views of
others' classes, and `lactchain.schemes` the worlds of other ecosystems by the scheme of their ids,
each an `environments.registry.Scheme`.
"""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from lactchain.errors import ConfigError

ADD_ONS, SCHEMES, WORLDS = (f"lactchain.{group}" for group in ("add_ons", "schemes", "worlds"))


@cache
def names(group: str = ADD_ONS) -> dict[str, EntryPoint]:
    """What is registered in a group, by its name; not what a removed package has left."""
    found = entry_points(group=group)
    return {entry.name: entry for entry in found if find_spec(entry.module.partition(".")[0])}


def add_on(name: str, group: str = ADD_ONS) -> Any | None:
    """What is registered under a name; None where nothing is."""
    entry = names(group).get(name)
    return entry.load() if entry is not None else None


def call(name: str, *arguments: Any, **options: Any) -> None:
    """Calls an add-on that is a function, if there is one."""
    if (function := add_on(name)) is not None:
        function(*arguments, **options)


def required(name: str, setting: str) -> Any:
    """What is registered under a name; `ConfigError` where nothing is, since a setting needs it."""
    if (found := add_on(name)) is None:
        raise ConfigError(
            f"{setting}: no installed package has the add-on {name}; lactchain_extras has one"
        )
    return found
