"""Make the pools and their limits, then deploy; doing it again changes nothing.

PREFECT_API_URL=http://127.0.0.1:4200/api python -m deployments.bootstrap
"""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

POOLS: dict[str, int | None] = {"vf-cpu": None, "vf-gpu": 1}
"""Pools and how many runs each holds at once. A chain waits in vf-cpu for its stages, so that pool
has no limit; vf-gpu holds one job for each accelerator of the fleet."""


def bootstrap() -> int:
    """Make the pools on the server and deploy every flow; return the exit code of Prefect."""
    asyncio.run(_make_pools())
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(
        [*command, "--prefect-file", "deployments/prefect.yaml"],
        cwd=ROOT,
        env=os.environ | {"VF_PIPELINE_HOME": str(ROOT)},
        timeout=300,
        check=False,
    )
    return done.returncode


async def _make_pools() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    async with get_client() as client:
        for name, limit in POOLS.items():
            try:
                await client.read_work_pool(name)
            except ObjectNotFound:
                pool = WorkPoolCreate(name=name, type="process", base_job_template=template)
                await client.create_work_pool(pool)
            await client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))


if __name__ == "__main__":
    sys.exit(bootstrap())
