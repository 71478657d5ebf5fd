"""``vf-serve``: which model is served, under which name; what it refuses before torch is loaded."""

from pathlib import Path

import pytest

from vf_pipeline.cli.serve import _options, _parser, _served_name, _weights, main
from vf_pipeline.configs import ServeCommandSettings
from vf_pipeline.models.weights import weights_digest


def parsed(*argv: str) -> ServeCommandSettings:
    return _options(_parser().parse_args(argv))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a model's."""
    made = tmp_path / "my-model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(b"weights")
    return made


def test_a_model_is_named_with_or_without_its_option() -> None:
    assert parsed("org/name").model == parsed("--model", "org/name").model == "org/name"
    assert parsed("m", "--model", "m", "--port", "0").model == "m"
    assert parsed().model == ServeCommandSettings().model
    assert main(["one", "--model", "other"]) == 2


def test_what_is_not_given_is_the_settings_own() -> None:
    assert parsed() == ServeCommandSettings()
    roots = parsed("m", "--weights-root", "a", "--weights-root", "b").weights_root
    assert roots == (Path("a"), Path("b"))


def test_a_folder_is_served_under_its_digest_and_its_name(folder: Path) -> None:
    assert _weights(parsed(str(folder))) == (str(folder), weights_digest(folder))
    assert _weights(parsed(str(folder), "--weight-version", "7")) == (str(folder), "7")
    assert _served_name(str(folder)) == "my-model"
    assert _served_name("smollm2-135m") == "smollm2-135m"
    assert _served_name("org/name") == "org/name"


def test_a_model_that_nobody_knows_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smollm2-135"]) == 2
    assert "did you mean 'smollm2-135m'" in capsys.readouterr().err


def test_sizes_have_their_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["m", "--max-context", "4"])
    assert caught.value.code == 2
    assert "--max-context: Input should be greater than or equal to 16" in capsys.readouterr().err
