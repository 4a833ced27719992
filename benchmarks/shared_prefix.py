"""What a training step costs where prompts share their instruction: read in each row, and once.

A batch of cloning (32 rows of 175 tokens) or of SimPO (32 pairs); a step is collator, forward and
backward pass, and AdamW, all weights trained. Both ways run in turn in one process, on the same
rows and weights; printed are CPU-seconds (`time.process_time`, one thread), medians over the
repeats, and the median of the ratios within a repeat. The losses of the first step are compared.

    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py
    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py --shared 100 --repeats 20

With the folder of a model: SimPO with an adapter of rank 16 on 8 pairs (prompts of 86 tokens, of
which 49 are shared; completions of 19 and 13), and TRL's CPOTrainer on the same rows. Of a model in
bfloat16 both pass through it under autocast.

    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py --model MODEL --repeats 3
    OMP_NUM_THREADS=1 python benchmarks/shared_prefix.py --model MODEL --dtype bfloat16
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from measuring import command_line, in_turns, ratio
from torch import Tensor
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from lactchain.config.settings import ActorConfig, LoraSettings
from lactchain.functional.losses import simpo_loss
from lactchain.functional.tokens import masked_mean
from lactchain.models.adapters import as_its_base
from lactchain.models.attention import can_read_once
from lactchain.models.loading import load_actor
from lactchain.models.runtime import quiet
from lactchain.models.tiny import build_tiny_tokenizer
from lactchain.trainers.behavior_cloning import IGNORED, CompletionCollator, as_one_sequence
from lactchain.trainers.simpo import (
    CHOSEN,
    PADDING,
    REJECTED,
    PreferenceCollator,
    completion_logprobs,
)

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
    parser = command_line(__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=175, help="of a prompt and its completion")
    parser.add_argument(
        "--shared", type=int, default=130, help="tokens that all prompts begin with"
    )
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--model", help="folder of a model, to compare with TRL's trainer")
    parser.add_argument("--dtype", default="float32", help="of that model: float32 or bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model:
        compare_with_trl(options.model, options.dtype, options.repeats)
        return
    for shape, sizes in SHAPES.items():
        for name, make in (("cloning", cloning_step), ("SimPO", simpo_step)):
            compare(f"{shape}, {name}", make(model_of(sizes), options), options.repeats)


def compare(name: str, step: Step, repeats: int) -> None:
    """Prints what a step takes each way."""
    whole, once = step(False).item(), step(True).item()
    sides = {"in rows": partial(step, False), "apart": partial(step, True)}
    in_rows, apart = in_turns(sides, repeats).values()
    print(f"{name:14} {median(in_rows):.3f} s  {median(apart):.3f} s", end="  ")
    print(f"{ratio(in_rows, apart):.2f} times  ({whole:.4f}, {once:.4f})")


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
        logprobs, branch = completion_logprobs(model, batch, model.dtype)
        return -logprobs[branch != PADDING].mean()

    return trained(model, loss)


def compare_with_trl(folder: str, dtype: str, repeats: int) -> None:
    """Prints what an update takes by TRL, by whole rows, and with what is shared read once."""
    actor = ActorConfig(folder, lora=LoraSettings(), dtype=dtype)
    model, tokenizer = load_actor(actor, trainable=True)
    can_read_once(model)
    options = argparse.Namespace(rows=8, tokens=86, shared=49)
    names, draw = ("prompt_ids", "chosen_ids", "rejected_ids"), random.Random(1)
    said = [[draw.choices(range(3, 300), k=length) for length in (19, 13)] for _ in range(8)]
    prompts = prompts_of(options, 0)
    rows = [
        dict(zip(names, (prompt, *both), strict=True))
        for prompt, both in zip(prompts, said, strict=True)
    ]
    by_trl, ours = trl_loss(model, tokenizer), trained(model, partial(by_us, model, rows))
    ways = {
        "TRL": partial(trained(model, lambda _: by_trl(rows)), True),
        "whole rows": partial(ours, False),
        "once": partial(ours, True),
    }
    print({name: round(step().item(), 5) for name, step in ways.items()})
    seconds = in_turns(ways, repeats)
    for name, taken in seconds.items():
        longer = ratio(seconds["TRL"], taken)
        print(f"{name:14} {median(taken):.2f} s  TRL takes {longer:.2f} times as long")


def by_us(model: PreTrainedModel, rows: list[dict[str, list[int]]], once: bool) -> Tensor:
    batch = PreferenceCollator(0, once)(rows)
    with as_its_base(model):
        logprobs, branch = completion_logprobs(model, batch, model.dtype)
    chosen, rejected = (masked_mean(logprobs, branch == side, dim=1) for side in (CHOSEN, REJECTED))
    return simpo_loss(chosen, rejected, 2.0, 0.5)[0].mean()


def trl_loss(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Tensor]:
    """The loss of pairs by TRL's trainer of the same loss, without an NLL term."""
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    texts = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    with tempfile.TemporaryDirectory() as folder, quiet():
        args = CPOConfig(
            folder, loss_type="simpo", cpo_alpha=0.0, beta=2.0, simpo_gamma=0.5,
            use_cpu=True, report_to=[], gradient_checkpointing=False, bf16=False,
        )  # fmt: skip
        trainer = CPOTrainer(model, args=args, train_dataset=texts, processing_class=tokenizer)

    def loss(rows: list[dict[str, list[int]]]) -> Tensor:
        batch = {}
        for side in ("chosen", "rejected"):
            ids = [row["prompt_ids"] + row[f"{side}_ids"] for row in rows]
            labels = [[IGNORED] * len(row["prompt_ids"]) + row[f"{side}_ids"] for row in rows]
            batch[f"{side}_input_ids"] = torch.tensor(ids)
            batch[f"{side}_labels"] = torch.tensor(labels)
            batch[f"{side}_attention_mask"] = torch.ones_like(batch[f"{side}_input_ids"])
        with torch.autocast("cpu", torch.bfloat16, enabled=model.dtype == torch.bfloat16):
            return trainer.compute_loss(trainer.model, batch)

    return loss


def trained(model: MistralForCausalLM, loss_of: Callable[[bool], Tensor]) -> Step:
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-9)

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
