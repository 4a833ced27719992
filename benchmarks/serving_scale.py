"""Simulates servers that generate beside a trainer: throughput and staleness as they grow.

python benchmarks/serving_scale.py
python benchmarks/serving_scale.py --gpus 1 8 64 512 --ahead 0 4 --tokens 200

Discrete events; nothing is computed by a model. A GPU that generates has so many slots, and a row
in one takes its tokens times the seconds of a decoding step, which grow with the rows beside it. An
update takes the oldest rows that wait, as many as its batch, and makes a new version of the
weights, which servers have `--load` seconds later, while what is under way goes on. Rows may be
asked for `--ahead` updates beyond the one that comes next: 0 is what a pipeline here does, whose
trainer waits for rows and whose servers wait for the trainer. Staleness is how many versions older
the weights were that a row began with than those it trains. The defaults are an estimate of
Mistral-7B on H100s (docs/serving.md), and no measurement.
"""

import heapq
import json
import math
import random
from collections import deque
from dataclasses import dataclass

from measuring import command_line


@dataclass(frozen=True)
class Rates:
    """What things take, in seconds, rows and tokens.

    Attributes:
        slots: rows that a GPU decodes at once.
        step, per_row: seconds of a decoding step, and what each row adds to it.
        tokens: of a completion, on average; lengths are geometric.
        train: seconds of one GPU for a row; an eighth of a pair, where a pair is chosen of eight.
        overhead: seconds of an update whatever its GPUs: their exchange of gradients.
        load: seconds until servers have a new version.
        batch: rows of an update for each GPU that trains.
        requests: rows a second that one client asks at most.
        clients: processes that ask.
    """

    slots: int = 128
    step: float = 0.008
    per_row: float = 0.00004
    tokens: float = 40.0
    train: float = 0.0018
    overhead: float = 0.3
    load: float = 1.0
    batch: int = 1024
    requests: float = 600.0
    clients: int = 1


def simulate(
    rates: Rates, generating: int, training: int, ahead: int, updates: int = 6, seed: int = 0
) -> dict[str, float]:
    """Rows a second, busy shares and staleness of so many GPUs of each kind."""
    chance, batch = random.Random(seed), rates.batch * training
    update_seconds = batch * rates.train / training + rates.overhead * math.log2(2 * training)
    capacity = min(generating * rates.slots, (ahead + 1) * batch)
    # All GPUs carry alike: the rows of a full one beside each other decide what a step takes.
    step = rates.step + rates.per_row * min(rates.slots, capacity / generating)
    gap = 1 / (rates.requests * rates.clients)
    events: list[tuple[float, str, int]] = []
    waiting: deque[int] = deque()
    now = asked_at = slot_seconds = busy = 0.0
    asked = under_way = version = served_version = 0
    is_training, staleness = False, []
    while version < updates:
        while under_way < generating * rates.slots and asked < (served_version + ahead + 1) * batch:
            length = 1 + int(math.log(1 - chance.random()) / math.log(1 - 1 / rates.tokens))
            asked_at = max(now, asked_at + gap)
            slot_seconds += length * step
            heapq.heappush(events, (asked_at + length * step, "row", served_version))
            asked, under_way = asked + 1, under_way + 1
        if not is_training and len(waiting) >= batch:
            staleness += [version - waiting.popleft() for _ in range(batch)]
            heapq.heappush(events, (now + update_seconds, "update", 0))
            is_training, busy = True, busy + update_seconds
        now, kind, value = heapq.heappop(events)
        if kind == "row":
            waiting.append(value)
            under_way -= 1
        elif kind == "update":
            version, is_training = version + 1, False
            heapq.heappush(events, (now + rates.load, "loaded", version))
        else:
            served_version = value
    return {
        "gpus": generating + training,
        "generating": generating,
        "training": training,
        "ahead": ahead,
        "rows_per_second": updates * batch / now,
        "servers_busy": min(1.0, slot_seconds / (now * generating * rates.slots)),
        "trainer_busy": busy / now,
        "mean_staleness": sum(staleness) / len(staleness),
        "largest_staleness": max(staleness),
    }


def main() -> None:
    arguments = command_line(__doc__)
    arguments.add_argument("--gpus", type=int, nargs="+", default=[2, 8, 64, 256, 1024])
    arguments.add_argument("--share", type=float, default=0.7, help="of the GPUs that generate")
    arguments.add_argument("--ahead", type=int, nargs="+", default=[0, 1, 4])
    for name in ("tokens", "train", "load", "requests"):
        arguments.add_argument(f"--{name}", type=float, default=getattr(Rates, name))
    arguments.add_argument("--clients", type=int, help="default: one for each GPU that trains")
    given = arguments.parse_args()
    for gpus in given.gpus:
        generating = max(1, round(given.share * gpus))
        training = max(1, gpus - generating)
        rates = Rates(
            tokens=given.tokens,
            train=given.train,
            load=given.load,
            requests=given.requests,
            clients=given.clients or training,
        )
        for ahead in given.ahead:
            found = simulate(rates, generating, training, ahead)
            print(json.dumps({k: float(f"{v:.3g}") for k, v in found.items()}))


if __name__ == "__main__":
    main()
