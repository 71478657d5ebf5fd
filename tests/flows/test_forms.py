"""The forms of the UI and the settings of the chain say the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.forms import EvaluationForm, Form, PipelineForm, SynthesisForm, TrainingForm
from vf_pipeline.configs import PipelineConfig, load_config
from vf_pipeline.errors import ConfigError, UnknownNameError

FORMS = [Form, EvaluationForm, SynthesisForm, TrainingForm, PipelineForm]


@pytest.mark.parametrize("form", FORMS)
def test_every_field_teaches(form: type[Form]) -> None:
    schema = form.model_json_schema()
    positions = []
    for name, field in schema["properties"].items():
        assert field["title"] and field["description"], name
        positions.append(field["position"])
        assert "anyOf" not in field, f"{name}: the form would ask for a branch"
    assert positions == sorted(positions) or len(set(positions)) == len(positions)
    lr = schema["properties"].get("grpo_lr")
    assert lr is None or (lr["exclusiveMinimum"], lr["maximum"]) == (0.0, 1.0)


@given(
    steps=st.integers(1, 10**6),
    lr=st.floats(1e-9, 1.0),
    name=st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True),
    environment=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1),
    kinds=st.lists(st.sampled_from(["larger", 'with "quotes"', "back\\slash"]), max_size=3),
    epochs=st.integers(1, 5),
)
def test_a_config_survives_the_form(
    steps: int, lr: float, name: str, environment: str, kinds: list[str], epochs: int
) -> None:
    config = PipelineConfig.model_validate(
        {
            "name": name,
            "environment": {"id": environment, "args": {"kinds": kinds, "n": {"deep": True}}},
            "grpo": {"steps": steps, "lr": lr},
            "sft": {"epochs": epochs},
        }
    )
    form = PipelineForm.from_config(config)
    sent = PipelineForm.model_validate(json.loads(form.model_dump_json()))
    assert sent.to_config() == config


def test_an_endpoint_in_the_form_switches_the_engine() -> None:
    config = EvaluationForm(base_url="http://127.0.0.1:9/v1").to_config()
    assert config.inference.engine == "endpoint"


def test_further_settings_are_checked() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'eval\.max_tokens'"):
        Form(settings=["eval.max_token=3"]).to_config()
    with pytest.raises(ConfigError, match=r"grpo\.lr"):
        Form(settings=["grpo.lr=-1"]).to_config()


def test_overrides_name_their_mistake() -> None:
    with pytest.raises(ConfigError, match="key=value"):
        load_config(PipelineConfig, [], ["grpo.steps"])
    with pytest.raises(UnknownNameError, match=r"did you mean 'grpo'"):
        load_config(PipelineConfig, [], ["grp.steps=3"])
