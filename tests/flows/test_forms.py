"""The forms of the UI say what the settings say, and come to the very settings that they show."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.forms import (
    EndpointForm,
    EvaluationForm,
    Form,
    PipelineForm,
    PreparationForm,
    SynthesisForm,
    TrainingForm,
)
from vf_pipeline import installed_environments
from vf_pipeline.configs import EnvironmentSettings, PipelineConfig, load_config
from vf_pipeline.data.split import split_examples
from vf_pipeline.errors import ConfigError, UnknownNameError
from vf_pipeline.models.wheels import KNOWN
from vf_pipeline.testing import EchoEnvironment

FORMS = [
    PreparationForm,
    EvaluationForm,
    EndpointForm,
    SynthesisForm,
    TrainingForm,
    PipelineForm,
]
NAMED = {"environment": "number-sense", "model": "smollm2-135m"}
ENDPOINT = {
    "environment": "number-sense",
    "model": "gpt-4.1-mini",
    "inference": {"base_url": "http://127.0.0.1:9/v1"},
}
OF_THE_FORM = {"fresh", "settings"}
"""Fields that are no settings."""
ELSEWHERE = {"environment": ("environment", "id"), "model": ("model", "name")}
"""Fields that lie flat in a form because people think of them so."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "enum")


def schema_of(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    schema = model.model_json_schema()
    return schema["properties"], schema.get("$defs", {})


def leaf(settings: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of one setting."""
    for key in keys[:-1]:
        settings = settings.model_fields[key].annotation
    found: dict[str, Any] = settings.model_json_schema()["properties"][keys[-1]]
    return found


def pairs(form: type[Form]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return each field of a form, those of its sections too, beside the setting's schema."""
    properties, definitions = schema_of(form)
    found = []
    for name, field in properties.items():
        if name in OF_THE_FORM:
            continue
        if "$ref" in field:
            section = definitions[field["$ref"].rpartition("/")[2]]
            found += [
                (f"{name}.{key}", inner, leaf(form.CONFIG, (name, key)))
                for key, inner in section["properties"].items()
            ]
        else:
            found.append((name, field, leaf(form.CONFIG, ELSEWHERE.get(name, (name,)))))
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_field_says_what_its_setting_says(form: type[Form]) -> None:
    for name, field, setting in pairs(form):
        assert field["title"], name
        assert field["description"] == setting["description"], name
        assert field.get("default") == setting.get("default"), name
        for bound in BOUNDS:
            assert field.get(bound) == setting.get(bound), f"{name}: {bound}"


@pytest.mark.parametrize("form", FORMS)
def test_fields_have_titles_words_and_an_order(form: type[Form]) -> None:
    properties, definitions = schema_of(form)
    for part in [properties, *(section["properties"] for section in definitions.values())]:
        positions = [field["position"] for field in part.values()]
        assert len(set(positions)) == len(positions)
    for field in properties.values():
        described = definitions.get(field.get("$ref", "").rpartition("/")[2], field)
        assert field["title"] and described["description"]


def test_what_is_shown_untouched_is_the_default() -> None:
    for form, of_the_ui in [
        (PreparationForm, {"name": "form"}),
        (EvaluationForm, {"name": "form", "data": {"synth_examples": 0, "train_examples": 0}}),
        (SynthesisForm, {"name": "form"}),
        (TrainingForm, {"name": "form"}),
        (PipelineForm, {"name": "form", "execution": "deployments"}),
    ]:
        config = form.model_validate(NAMED).to_config()
        assert type(config) is PipelineConfig
        assert config == PipelineConfig.model_validate(of_the_ui)


def test_the_chains_form_is_in_sections() -> None:
    properties, _ = schema_of(PipelineForm)
    sections = {name: field["title"] for name, field in properties.items() if "$ref" in field}
    assert sections == {
        "data": "Data settings",
        "eval": "Evaluation settings",
        "synth": "Synthetic data settings",
        "sft": "SFT settings",
        "grpo": "GRPO settings",
        "gate": "Gate settings",
    }


@given(
    steps=st.integers(1, 10**6),
    lr=st.floats(1e-9, 1.0),
    environment=st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1),
    kinds=st.lists(st.sampled_from(["larger", "two words"]), max_size=3),
)
def test_what_is_typed_is_what_is_run(
    steps: int, lr: float, environment: str, kinds: list[str]
) -> None:
    typed = {
        "environment": environment,
        "model": "org/name",
        "grpo": {"steps": steps, "lr": lr},
        "settings": [f"environment.args.kinds={[*kinds]}", "sft.save_steps=3"],
    }
    config = PipelineForm.model_validate(typed).to_config()
    assert config.environment == EnvironmentSettings(id=environment, args={"kinds": kinds})
    assert (config.model.name, config.grpo.steps, config.grpo.lr) == ("org/name", steps, lr)
    assert config.sft.save_steps == 3


def test_environment_and_model_are_lists_with_room_for_others() -> None:
    properties, _ = schema_of(EvaluationForm)
    for name, known in [("environment", [*installed_environments()]), ("model", [*KNOWN])]:
        listed, free = properties[name]["anyOf"]
        assert listed["enum"] == sorted(known)
        assert free == {"title": "Type another", "type": "string"}
    assert "anyOf" not in schema_of(EndpointForm)[0]["model"]


def test_what_must_be_given_is_required_and_the_rest_is_not() -> None:
    for form in FORMS:
        required = set(form.model_json_schema()["required"])
        of_an_endpoint = {"inference"} if form is EndpointForm else set()
        assert required == {"environment", "model"} | of_an_endpoint
    _, definitions = schema_of(EndpointForm)
    assert definitions["EndpointFormInference"]["required"] == ["base_url"]
    with pytest.raises(ValidationError, match="environment"):
        EvaluationForm.model_validate({"model": "smollm2-135m"})


def test_an_endpoints_form_switches_the_engine() -> None:
    config = EndpointForm.model_validate(ENDPOINT).to_config()
    assert config.inference.engine == "endpoint"
    assert config.inference.base_url == "http://127.0.0.1:9/v1"
    assert config.model.name == "gpt-4.1-mini"
    with pytest.raises(ValidationError, match="base_url"):
        EndpointForm.model_validate(ENDPOINT | {"inference": {"base_url": ""}})


def test_further_settings_are_checked() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'eval\.max_tokens'"):
        Form.model_validate(NAMED | {"settings": ["eval.max_token=3"]}).to_config()
    with pytest.raises(ConfigError, match=r"grpo\.lr"):
        Form.model_validate(NAMED | {"settings": ["grpo.lr=-1"]}).to_config()


def test_overrides_name_their_mistake() -> None:
    with pytest.raises(ConfigError, match="key=value"):
        load_config(PipelineConfig, [], ["grpo.steps"])
    with pytest.raises(UnknownNameError, match=r"did you mean 'grpo'"):
        load_config(PipelineConfig, [], ["grp.steps=3"])


def test_an_evaluation_is_on_the_chains_held_out_examples() -> None:
    examples = EchoEnvironment(num_examples=300).examples("train")

    def held_out(config: PipelineConfig) -> list[str]:
        data = config.data
        sizes = {"eval": 40, "synth": data.synth_examples, "train": data.train_examples}
        return [e.digest for e in split_examples(examples, sizes, config.seed)["eval"]]

    chain = PipelineForm.model_validate(NAMED | {"data": {"train_examples": 100}}).to_config()
    assert held_out(EvaluationForm.model_validate(NAMED).to_config()) == held_out(chain)
