"""Whether generation behind a server is that of the actor here.

python benchmarks/serving.py equality --episodes 1000

Episodes of an untrained tiny actor on a 2x2 grid, free and constrained, behind an engine of the
tests (the project's own decoder over a real socket) of which 30 % of the requests fail, are cut or
delayed; they must equal the local actor's token for token.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from measuring import ROOT, command_line

sys.path.insert(0, str(ROOT / "tests"))
from engine_stand_in import Engine, serving
from script_setups import GRID, build_weights

from lactchain.config.settings import SamplerConfig, ServedConfig
from lactchain.data.episodes import sampled_episodes
from lactchain.data.rollouts import Rollouts
from lactchain.environments.language import make_language_env
from lactchain.models.actor import LanguageActor
from lactchain_extras.serving.policy import ServedActor

FAULTS = 0.3


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("what", choices=["equality"])
    parser.add_argument("--episodes", type=int, default=1000)
    given = parser.parse_args()
    for decoding in ("free", "constrained"):
        print(json.dumps(equality(decoding, given.episodes)))


def equality(decoding: str, num_episodes: int) -> dict[str, float | str]:
    """Episodes of the served actor beside those of the local one."""
    env = make_language_env(GRID)
    episodes = sampled_episodes(env, num_episodes, seed=0)
    with TemporaryDirectory() as place:
        weights = build_weights(Path(place))
        config = SamplerConfig(str(weights / "actor"), max_new_tokens=8, decoding=decoding)
        here = Rollouts(GRID).play(LanguageActor.from_config(config, env.grammar), episodes)
        with serving(Engine(weights / "actor", env.grammar, faults=FAULTS)) as engine:
            served = replace(config, served=ServedConfig([engine.url]))
            actor, start = ServedActor.from_config(served, env.grammar), time.perf_counter()
            there = Rollouts(GRID).play(actor, episodes)
            seconds, asked = time.perf_counter() - start, engine.answered["/v1/completions"]
    same = sum(
        [a.token_ids for a in one.actions] == [a.token_ids for a in other.actions]
        and one.observations == other.observations
        for one, other in zip(here, there, strict=True)
    )
    distances = [
        np.abs(np.subtract(a.logprobs, b.logprobs)).max()
        for one, other in zip(here, there, strict=True)
        for a, b in zip(one.actions, other.actions, strict=False)
        if len(a.logprobs) == len(b.logprobs)
    ]
    return {
        "decoding": decoding,
        "num_episodes": num_episodes,
        "token_equal": same,
        "largest_distance_of_log_probabilities": float(max(distances)),
        "completions": sum(map(len, here)),
        "answered": asked,
        "seconds": seconds,
    }


if __name__ == "__main__":
    main()
