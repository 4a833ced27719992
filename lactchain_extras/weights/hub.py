"""Models of the Hugging Face hub, downloaded with the lines that help where that fails."""

from pathlib import Path

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from lactchain.errors import DataError
from lactchain.models.places import download_command
from lactchain.models.weight_files import check_weights

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "LICENSE*", "README.md"]

# Mistral publishes its weights twice, the second time in its own format.
DUPLICATES = ["consolidated*", "original/*", "onnx/*"]


def download(model: str, folder: str | Path) -> None:
    """Downloads a model with its tokenizer into `folder`; what is there already stays.

    Shows progress; a download that was cut continues. Pickled weights are left where they are.

    Raises:
        DataError: no network, no such model, no access to it, or it came incomplete; the message
            names the command, and the page where a licence is accepted.
    """
    page, own = f"https://huggingface.co/{model}", Path(folder).parts[-2:] == Path(model).parts
    again = f"run: {download_command(model)}" if own else "give the same command"
    try:
        huggingface_hub.snapshot_download(
            model, local_dir=folder, allow_patterns=WANTED, ignore_patterns=DUPLICATES
        )
    except GatedRepoError as error:
        raise DataError(
            f"{model}: no access; accept its licence at {page}, log in (run: hf auth login), "
            f"then {again}"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise DataError(
            f"{model}: no such model at {page}, or a private one; log in (run: hf auth login) or "
            "correct the name"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, HTTPError) as error:
        raise DataError(
            f"{model}: the hub cannot be reached ({type(error).__name__}); once online, accept the "
            f"licence at {page} if it has one, then {again}"
        ) from error
    # Without a network the hub's client hands back a folder that holds anything at all.
    check_weights(Path(folder))
