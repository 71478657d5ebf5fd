"""What deployments/ names by string exists, and no evaluation that was asked for is lost."""

from pathlib import Path
from typing import Any

import yaml
from prefect.flows import Flow, load_flow_from_entrypoint

from deployments.bootstrap import POOLS
from vf_pipeline.configs import EnvironmentSettings, ModelSettings

FILE = Path(__file__).resolve().parents[2] / "deployments" / "prefect.yaml"


def deployments() -> dict[str, dict[str, Any]]:
    """Return what is deployed, by the names that the API knows."""
    found = {}
    for deployment in yaml.safe_load(FILE.read_text())["deployments"]:
        flow = load_flow_from_entrypoint(deployment["entrypoint"])
        assert isinstance(flow, Flow)
        if "parameters" in deployment:
            flow.validate_parameters(deployment["parameters"])
        assert deployment["work_pool"]["name"] in POOLS
        found[f"{flow.name}/{deployment['name']}"] = deployment
    return found


def test_every_entrypoint_loads_and_takes_its_parameters() -> None:
    assert deployments().keys() == {
        "pipeline/chain",
        "evaluate/on-demand",
        "evaluate/nightly",
        "evaluate-endpoint/on-demand",
        "synthesize/rows",
        "train/grpo",
        "prepare/data",
        "stage/cpu",
        "stage/gpu",
        "reap/hourly",
    }


def test_only_the_nightly_evaluation_may_be_cancelled_for_being_late() -> None:
    found = deployments()
    nightly = found["evaluate/nightly"]
    assert [schedule["cron"] for schedule in nightly["schedules"]] == ["0 3 * * *"]
    cancelling = [
        name
        for name, deployment in found.items()
        if deployment.get("concurrency_limit", {}).get("collision_strategy") == "CANCEL_NEW"
    ]
    assert cancelling == ["evaluate/nightly"]
    assert "schedules" not in found["evaluate/on-demand"]


def test_a_model_behind_an_endpoint_does_not_wait_for_the_accelerator() -> None:
    found = deployments()
    assert found["evaluate/on-demand"]["work_pool"]["name"] == "vf-gpu"
    assert found["evaluate-endpoint/on-demand"]["work_pool"]["name"] == "vf-cpu"


def test_forms_start_from_the_default_environment_and_model() -> None:
    usual = {"environment": EnvironmentSettings().id, "model": ModelSettings().name}
    forms = [
        deployment["parameters"]["form"]
        for deployment in deployments().values()
        if "form" in deployment.get("parameters", {})
    ]
    assert len(forms) == 6
    assert all(form.items() >= usual.items() for form in forms)
