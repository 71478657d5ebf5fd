"""What deployments/ names by string exists."""

from pathlib import Path

import yaml
from prefect.flows import Flow, load_flow_from_entrypoint

from deployments.bootstrap import POOLS

FILE = Path(__file__).resolve().parents[2] / "deployments" / "prefect.yaml"


def test_every_entrypoint_loads_and_takes_its_parameters() -> None:
    document = yaml.safe_load(FILE.read_text())
    names = set()
    for deployment in document["deployments"]:
        flow = load_flow_from_entrypoint(deployment["entrypoint"])
        assert isinstance(flow, Flow)
        if "parameters" in deployment:
            flow.validate_parameters(deployment["parameters"])
        assert deployment["work_pool"]["name"] in POOLS
        names.add(f"{flow.name}/{deployment['name']}")
    assert {"stage/cpu", "stage/gpu", "pipeline/chain", "evaluate/nightly"} <= names


def test_the_evaluation_has_a_cron_schedule() -> None:
    document = yaml.safe_load(FILE.read_text())
    nightly = next(d for d in document["deployments"] if d["name"] == "nightly")
    assert [schedule["cron"] for schedule in nightly["schedules"]] == ["0 3 * * *"]
