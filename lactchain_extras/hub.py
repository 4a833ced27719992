"""Uploads an exported model to the Hugging Face hub."""

from __future__ import annotations

import logging
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from lactchain.errors import ConfigError, LactChainError
from lactchain.storage.manifests import MANIFEST, read_manifest

if TYPE_CHECKING:
    from huggingface_hub import HfApi, ModelInfo

log = logging.getLogger("lactchain.hub")  # it is shown where those of the core are


def push(folder: Path, name: str, public: bool = False) -> None:
    """Uploads a folder to the hub, into a repository that is made where there is none.

    Files of the same names are replaced. Those of an earlier upload that the folder no longer has
    are deleted, as that upload's manifest lists them; others stay. The hub's own client finds the
    token, in HF_TOKEN or where `hf auth login` has put it.

    Args:
        public: whether everybody may read it: a new repository is private otherwise, and one that
            is public already is refused.

    Raises:
        ConfigError: everybody can read the repository, there is no token that may write there, or
            the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    api = HfApi()
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        there = api.model_info(name)
        _check_readers(there, public)
        seen = "a private repository" if there.private else "which everybody can read"
        outdated = _outdated(api, there, folder)
        gone = f"; deleting there: {', '.join(outdated)}" if outdated else ""
        log.info("%s: uploading to %s, %s%s", folder, name, seen, gone)
        exactly = [escape(file) for file in outdated]
        address = api.upload_folder(repo_id=name, folder_path=folder, delete_patterns=exactly)
    except (HTTPError, OSError) as error:  # of all kinds: no network, no token, no right
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ConfigError(
            f"push_to_hub: expected a hub that takes {name}, got: {reason}; log in with a token "
            "that may write (run: hf auth login), then give the same command again; the model is "
            "whole"
        ) from error
    log.info("%s: uploaded to %s", folder, address)


def _check_readers(there: ModelInfo, public: bool) -> None:
    if not (there.private or public):
        raise ConfigError(
            f"push_to_hub: expected a private repository, got {there.id}, which everybody can "
            "read; publish there with --public true, or name another one; the model is whole"
        )


def _outdated(api: HfApi, there: ModelInfo, folder: Path) -> list[str]:
    """Files in the repository that its manifest lists, and that the folder does not have."""
    files = {file.rfilename for file in there.siblings or ()}
    if MANIFEST not in files:
        return []
    with TemporaryDirectory() as cache:
        manifest = Path(api.hf_hub_download(there.id, MANIFEST, cache_dir=cache))
        try:
            listed = read_manifest(manifest).get("files", {})
        except LactChainError:  # somebody else's, or a later version's: nothing here is known
            return []
    held = {file.relative_to(folder).as_posix() for file in folder.rglob("*")}
    return sorted(files & listed.keys() - held)
