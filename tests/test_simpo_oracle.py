"""Our SimPO against TRL's CPOTrainer, which has the same loss under other names."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from training_setups import make_simpo

from lactchain.config.settings import SimPOConfig
from lactchain.functional.losses import simpo_loss
from lactchain.functional.tokens import pad
from lactchain.trainers.simpo import CHOSEN, REJECTED, PreferenceCollator, completion_logprobs


def their_losses(chosen, rejected, beta, target_margin=0.5, loss_type="simpo"):
    from trl.experimental.cpo import CPOTrainer

    accelerator = SimpleNamespace(device=torch.device("cpu"))
    settings = SimpleNamespace(
        alpha=0.0, beta=beta, loss_type=loss_type, simpo_gamma=target_margin, label_smoothing=0.0,
        accelerator=accelerator,
    )  # fmt: skip
    return CPOTrainer.cpo_loss(settings, chosen, rejected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize(("beta", "target_margin"), [(2.5, 0.25), (2.0, 1.6), (0.1, 0.5)])
def test_loss_equals_trl_on_random_pairs(beta, target_margin, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    chosen, rejected = -3 * torch.rand(2, 10_000, generator=generator, dtype=dtype)
    ours, metrics = simpo_loss(chosen, rejected, beta, target_margin)
    theirs, *rewards = their_losses(chosen, rejected, beta, target_margin)
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    for side, expected in zip(("chosen", "rejected"), rewards, strict=True):
        torch.testing.assert_close(metrics[f"rewards/{side}"], expected)
    torch.testing.assert_close(metrics["rewards/margins"], rewards[0] - rewards[1])
    assert torch.equal(metrics["rewards/accuracies"].bool(), chosen > rejected)
    huge, _ = simpo_loss(torch.tensor([-1e4]), torch.tensor([0.0]), beta, target_margin)
    assert huge.isfinite().all()


def test_trainer_loss_equals_trl_from_full_logits(tiny, run):
    """From padded batch to loss, against TRL's own steps: all logits, shift, mask, average, NLL."""
    from trl.experimental.cpo import CPOTrainer

    trainer = make_simpo(tiny, run, lora=False)
    trainer.settings = SimPOConfig(beta=2.0, target_margin=0.5, nll_weight=0.3)
    rows = trainer.train_dataset[:7]
    ours = trainer.compute_loss(trainer.model, trainer.data_collator(rows))
    texts = [(row["prompt_ids"], row[k]) for row in rows for k in ("chosen_ids", "rejected_ids")]
    ids = pad([prompt + completion for prompt, completion in texts], 0)
    labels = pad([[-100] * len(prompt) + completion for prompt, completion in texts], -100)
    logits = trainer.model(input_ids=ids).logits
    logps = CPOTrainer.get_batch_logps(logits, labels, average_log_prob=True)
    losses, *_ = their_losses(logps[::2], logps[1::2], 2.0, 0.5)
    nll = F.cross_entropy(logits[::2, :-1].flatten(0, 1), labels[::2, 1:].flatten())
    torch.testing.assert_close(ours, losses.mean() + 0.3 * nll, atol=1e-6, rtol=0)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_sequence_per_pair_gives_what_two_sequences_give(attention, tiny, run):
    """Prompts of different lengths, one token among them; both kinds of attention."""
    model = make_simpo(tiny, run, lora=False).model.eval()
    model.set_attn_implementation(attention)
    rows = [
        {"prompt_ids": [7], "chosen_ids": [9, 10, 1], "rejected_ids": [11, 1]},
        {"prompt_ids": [7, 8, 9, 10, 11, 12], "chosen_ids": [12], "rejected_ids": [13] * 9},
    ]
    logprobs, side = completion_logprobs(model, PreferenceCollator(0)(rows), torch.float32)
    for i, row in enumerate(rows):
        for branch, name in ((CHOSEN, "chosen_ids"), (REJECTED, "rejected_ids")):
            prompt, completion = row["prompt_ids"], torch.tensor(row[name])
            logits = model(input_ids=torch.tensor([prompt + row[name]])).logits[0]
            expected = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, completion[:, None])
            torch.testing.assert_close(logprobs[i][side[i] == branch], expected[:, 0])
