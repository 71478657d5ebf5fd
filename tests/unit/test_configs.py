from pathlib import Path

import pytest

from vf_pipeline.configs import EnvironmentSettings, PipelineConfig, load_config
from vf_pipeline.errors import ConfigError, UnknownNameError


def test_files_are_read_left_to_right_then_the_overrides(tmp_path: Path) -> None:
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text('name = "a"\n[grpo]\nsteps = 3\nlr = 1e-3\n')
    second.write_text("[grpo]\nsteps = 4\n")
    config = load_config(PipelineConfig, [first, second], ["grpo.groups=2", "name=b"])
    assert (config.name, config.grpo.steps, config.grpo.groups) == ("b", 4, 2)
    assert config.grpo.lr == 1e-3


def test_values_lie_below_files_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("[grpo]\nsteps = 3\n")
    values = {"name": "form", "grpo": {"steps": 2, "groups": 5}, "environment": {"id": "x"}}
    config = load_config(PipelineConfig, [path], ["environment.args.n=1"], values=values)
    assert (config.name, config.grpo.steps, config.grpo.groups) == ("form", 3, 5)
    assert config.environment == EnvironmentSettings(id="x", args={"n": 1})
    assert values["environment"] == {"id": "x"}


def test_an_override_may_be_a_table_a_number_or_a_bare_word() -> None:
    values = ['environment.args={kinds = ["larger"]}', "model.name=some/model", "grpo.lr=1e-6"]
    config = load_config(PipelineConfig, [], values)
    assert config.environment.args == {"kinds": ["larger"]}
    assert config.model.name == "some/model"
    assert config.grpo.lr == 1e-6


def test_baselines_are_tables_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[[eval.baselines]]\nshots = 2\n[[eval.baselines]]\nmax_tokens = 32\n")
    config = load_config(PipelineConfig, [path])
    two, long = config.eval.baselines
    assert (two.shots, two.max_tokens, long.shots, long.max_tokens) == (2, 0, 0, 32)
    assert load_config(PipelineConfig, [path], ["eval.baselines=[]"]).eval.baselines == ()
    line = "eval.baselines=[{shots = 5, max_tokens = 4}]"
    assert load_config(PipelineConfig, [path], [line]).eval.baselines[0].shots == 5
    with pytest.raises(ConfigError, match=r"eval\.baselines\.0\.shot'"):
        load_config(PipelineConfig, [path], ["eval.baselines=[{shot = 5}]"])
    stored = PipelineConfig.model_validate(config.model_dump(mode="json"))
    assert stored == config


def test_settings_are_frozen_and_described() -> None:
    config = PipelineConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3  # type: ignore[misc]
    for part in (config, config.grpo, config.inference, config.eval):
        for name, field in type(part).model_fields.items():
            nested = hasattr(field.annotation, "model_fields")
            assert nested or field.description, f"{type(part).__name__}.{name}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grpo\n", "is not valid TOML"),
        ("[grpo]\nsteps = 'many'\n", r"config key 'grpo.steps' in .*integer.*'many'"),
        ("[grpo]\nsteps = 0\n", r"config key 'grpo.steps'.*greater than or equal to 1, got 0"),
        ("grpo = 3\n", r"config key 'grpo'"),
        ('name = "Not A Name"\n', "config key 'name'"),
    ],
)
def test_a_wrong_value_names_file_key_and_bound(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_config(PipelineConfig, [path])


def test_an_unknown_key_gets_the_closest_one(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[inference]\nengin = 'builtin'\n")
    with pytest.raises(UnknownNameError, match=r"did you mean 'inference\.engine'"):
        load_config(PipelineConfig, [path])


def test_a_bad_value_is_blamed_on_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[sft]\nlr = 1e-5\n[grpo]\nsteps = 0\n")
    with pytest.raises(ConfigError, match=r"'grpo.steps' in .*x\.toml"):
        load_config(PipelineConfig, [file], ["sft.lr=1e-4"])
    with pytest.raises(ConfigError, match=r"'sft.lr' in the overrides"):
        load_config(PipelineConfig, [file], ["grpo.steps=1", "sft.lr=abc"])
