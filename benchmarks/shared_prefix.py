"""What a training step costs where prompts share their instruction: read in each row, and once.

A batch of cloning (32 rows of 175 tokens) or of SimPO (32 pairs); a step is collator, forward and
backward pass, and AdamW, all weights trained. Both ways run in turn in one process, on the same
rows and weights; printed are CPU-seconds (`time.process_time`, one thread), medians over the
repeats, and the median of the ratios within a repeat. The losses of the first step are compared.

    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py
    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py --shared 100 --repeats 20
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM

from lactchain.models.runtime import quiet
from lactchain.models.shared_prefix import can_read_once
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.trainers.behavior_cloning import IGNORED, CompletionCollator, as_one_sequence
from lactchain.trainers.simpo import PADDING, PreferenceCollator, completion_logprobs

SHAPES = {
    "tiny": {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 256, "vocab_size": 304,
    },
    "wide": {
        "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 1536, "vocab_size": 32768,
    },
}  # fmt: skip
COMPLETION = 12

Step = Callable[[bool], Tensor]
"""A training step, reading what is shared once or not; its loss."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=175, help="of a prompt and its completion")
    parser.add_argument(
        "--shared", type=int, default=130, help="tokens that all prompts begin with"
    )
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for shape, sizes in SHAPES.items():
        for name, make in (("cloning", cloning_step), ("SimPO", simpo_step)):
            compare(f"{shape}, {name}", make(model_of(sizes), options), options.repeats)


def compare(name: str, step: Step, repeats: int) -> None:
    """Prints what a step takes each way."""
    whole, once = step(False).item(), step(True).item()
    taken = [(cpu_seconds(step, False), cpu_seconds(step, True)) for _ in range(repeats)]
    in_rows, apart = (statistics.median(seconds) for seconds in zip(*taken, strict=True))
    ratio = statistics.median(a / b for a, b in taken)
    print(f"{name:14} {in_rows:.3f} s  {apart:.3f} s  {ratio:.2f} times  ({whole:.4f}, {once:.4f})")


def cpu_seconds(step: Step, once: bool) -> float:
    start = time.process_time()
    step(once)
    return time.process_time() - start


def model_of(sizes: dict[str, int]) -> MistralForCausalLM:
    torch.manual_seed(0)
    with quiet():
        model = MistralForCausalLM(MistralConfig(**sizes, sliding_window=None, pad_token_id=0))
    can_read_once(model)
    return model.train()


def cloning_step(model: MistralForCausalLM, options: argparse.Namespace) -> Step:
    """Of one batch, again and again; the weights move as little as Adam lets them."""
    prompts, tokenizer = prompts_of(options, COMPLETION), build_tiny_tokenizer(["a"])
    rows = [
        {"input_ids": [*prompt, *said], "labels": [IGNORED] * len(prompt) + said}
        for prompt, said in zip(prompts, completions(options.rows, 1), strict=True)
    ]

    def loss(once: bool) -> Tensor:
        batch = CompletionCollator(tokenizer, once)(rows)
        texts = as_one_sequence(batch, model.dtype) if once else batch
        return model(**texts).loss

    return trained(model, loss)


def simpo_step(model: MistralForCausalLM, options: argparse.Namespace) -> Step:
    """The same of pairs."""
    parts = (
        prompts_of(options, 2 * COMPLETION + 1),
        completions(options.rows, 1),
        completions(options.rows, 2),
    )
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]

    def loss(once: bool) -> Tensor:
        batch = PreferenceCollator(0, once)(rows)
        logprobs, branch = completion_logprobs(
            model, **batch, config=model.config, dtype=model.dtype
        )
        return -logprobs[branch != PADDING].mean()

    return trained(model, loss)


def trained(model: MistralForCausalLM, loss_of: Callable[[bool], Tensor]) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)

    def step(once: bool) -> Tensor:
        loss = loss_of(once)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def prompts_of(options: argparse.Namespace, behind: int) -> list[list[int]]:
    """Prompts that leave room for so many tokens behind them."""
    draw = random.Random(0)
    shared = draw.choices(range(3, 300), k=options.shared)
    own = options.tokens - options.shared - behind
    return [[*shared, *draw.choices(range(3, 300), k=own)] for _ in range(options.rows)]


def completions(count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.choices(range(3, 300), k=COMPLETION) for _ in range(count)]


if __name__ == "__main__":
    main()
