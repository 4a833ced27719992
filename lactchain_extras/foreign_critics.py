"""Critics of others: a file of numbers, or a reward model of transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from lactchain.config.settings import CriticConfig, ModelConfig
from lactchain.environments.language import LanguageEnv
from lactchain.errors import DataError, NonFiniteError
from lactchain.inspection.run_view import load_critic
from lactchain.models.critic import MEANING, form_of
from lactchain.models.loading import load_base, load_shape, load_tokenizer
from lactchain.models.prompting import encodable
from lactchain.models.weights import resolve_weights
from lactchain.storage.files import check_types, read_json
from lactchain.types import Critic
from lactchain_extras.weights.critic_export import EXPORTED

REWARD = "reward:"


@dataclass(frozen=True)
class Numbers:
    """A `Critic` of numbers that somebody else has come to, one for each text."""

    known: Mapping[str, float]
    gamma: float
    discount_per: str = "action"
    mode: str = "value"

    def values(self, observations: Sequence[str], actions: Sequence[str] | None = None) -> Any:
        """The numbers (B,) of B texts."""
        return np.array([self.known[text] for text in observations])


def read_numbers(path: Path, env: LanguageEnv, gamma: float) -> Numbers:
    """A JSON file of `{"values": [...]}`, S numbers in the order of the states in RUN/states.json.

    Raises:
        DataError: it holds something else.
    """
    content, states = read_json(path).get("values"), env.view_states()
    is_list = isinstance(content, list) and len(content) == len(states)
    if not is_list or not all(type(n) in (int, float) and abs(n) < 1e300 for n in content):
        raise DataError(f"{path}: expected values: a list of {len(states)} numbers")
    known: dict[str, float] = {}
    of_state = zip(map(env.texts, states), content, strict=True)
    for text, number in ((text, float(n)) for alike, n in of_state for text in alike):
        if known.setdefault(text, number) != number:
            got = f"{known[text]:g} and {number:g} of {text[:99]!r}"
            raise DataError(f"{path}: values: expected one for states that read alike, got {got}")
    return Numbers(known, gamma)


class RewardModel:
    """A `Critic` that is a model of transformers with one label, such as TRL's reward models.

    One that `lactchain export` wrote reads texts as the critic did, with the discount of that.
    """

    mode = "value"

    def __init__(self, model: str, gamma: float) -> None:
        if (Path(model) / "critic_config.json").is_file():
            raise DataError(f"{model}: expected a reward model, got a critic; leave reward: out")
        folder = resolve_weights(model)
        shape = load_shape(folder)
        if (labels := shape.num_labels) != 1:
            raise DataError(f"{folder}: expected a model with one label, got {labels}")
        if any("ForTokenClassification" in name for name in shape.architectures or ()):
            raise DataError(f"{folder}: expected a label for a text, got one for each token")
        self.gamma, self.discount_per, self._form, self._how = gamma, "action", "{text}", {}
        if critic := _meaning(folder, getattr(shape, EXPORTED, None)):
            self.gamma, self.discount_per = critic.gamma, critic.discount_per
            self._form = form_of(critic)
            self._how = {"truncation": True, "max_length": critic.max_length}
            self._how["split_special_tokens"] = True  # what a text says is no command
        self._tokenizer = load_tokenizer(folder, padding_side="right")
        self._tokenizer.truncation_side = "left"
        self._model = load_base(AutoModelForSequenceClassification, folder, ModelConfig(model))
        # A critic that was exported so has no bias in its head.
        self._offset = getattr(self._model.config, "value_offset", 0.0)
        if type(self._offset) not in (int, float):
            raise DataError(f"{folder}/config.json: value_offset: expected a number")

    def values(self, observations: Sequence[str], actions: Sequence[str] | None = None) -> Any:
        """Its scores (B,) of B texts, one by one: padding would need a token for it."""
        with torch.inference_mode():
            read = (self._form.replace("{text}", encodable(text)) for text in observations)
            rows = (self._tokenizer(text, return_tensors="pt", **self._how) for text in read)
            rows = (row.to(self._model.device) for row in rows)
            found = np.array([self._model(**row).logits.item() for row in rows]) + self._offset
        if not np.isfinite(found).all():
            raise NonFiniteError("reward: the model computes NaN or infinities; copy it again")
        return found


def _meaning(folder: Path, told: Any) -> CriticConfig | None:
    """What a critic that was exported says of its values; nothing where it is another model."""
    if told is None:
        return None
    try:
        known = {name: told[name] for name in MEANING}
        check_types(CriticConfig, known)
        critic = CriticConfig(str(folder), **known)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}/config.json: {EXPORTED}: expected what export writes") from error
    if critic.mode != "value":
        raise DataError(f"{folder}: expected a critic of states, got one of chains")
    return critic


def open_critic(name: str, env: LanguageEnv, gamma: float) -> Critic:
    """What a name of `JudgeConfig.critics` stands for; `DataError` where there is none."""
    if name.startswith(REWARD):
        return RewardModel(name.removeprefix(REWARD), gamma)
    if name.endswith(".json"):
        return read_numbers(Path(name), env, gamma)
    return load_critic(name)
