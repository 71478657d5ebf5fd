"""What each process may load: it starts fast, and two processes share a machine's memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TORCH = {"torch", "accelerate"}
SERVERS = {"aiohttp.web", "fastapi", "uvicorn", "http.server", "vf_pipeline.serving.http"}
RECORDS = {"mlflow", "prefect"}

# Process → what it does once it has started, and what it must not have loaded by then.
PROCESSES = {
    "rollout worker": (
        # Spawned from the trainer, so the trainer's module is imported there as well.
        """
        import vf_pipeline.training.trainer.process
        import vf_pipeline.training.worker.process
        import vf_pipeline.rollouts.runner
        import vf_pipeline.data.files
        from vf_pipeline.registry import load_environment
        from vf_pipeline.tokens.render import ChatRenderer
        load_environment("number-sense")
        ChatRenderer(FOLDER).render([{"role": "user", "content": "Which is larger?"}])
        """,
        TORCH | SERVERS | RECORDS,
    ),
    "HTTP client": (
        """
        import asyncio
        import vf_pipeline.tokens.client
        from vf_pipeline.inference.client import Client
        from vf_pipeline.inference.endpoints import Endpoint
        async def use():
            async with Client(Endpoint("http://127.0.0.1:9/v1", "m")):
                pass
        asyncio.run(use())
        """,
        TORCH | SERVERS | RECORDS | {"transformers"},
    ),
    "engine control": (
        "import vf_pipeline.inference.control, vf_pipeline.serving.session",
        TORCH | SERVERS | RECORDS | {"transformers", "openai"},
    ),
    "start of vf-eval": (
        """
        from contextlib import suppress
        from vf_pipeline.cli.eval import main
        with suppress(SystemExit):
            main(["--help"])
        import vf_pipeline.rollouts.runner
        """,
        TORCH | SERVERS | RECORDS | {"transformers", "datasets", "openai"},
    ),
    "start of vf-serve": (
        """
        from contextlib import suppress
        from vf_pipeline.cli.serve import main
        with suppress(SystemExit):
            main(["--help"])
        """,
        TORCH | SERVERS | RECORDS | {"transformers", "datasets", "openai"},
    ),
    "HTTP routes without their engine": (
        "import vf_pipeline.serving.http.routes",
        TORCH | RECORDS | {"transformers", "openai"},
    ),
    "code of an environment": (
        """
        from vf_pipeline.registry import load_environment
        load_environment("number-sense")
        """,
        TORCH | SERVERS | RECORDS | {"transformers"},
    ),
    "trainer": (
        """
        import vf_pipeline.training.trainer.process
        import vf_pipeline.training.trainer.token_trainer
        import vf_pipeline.training.trainer.grpo
        import vf_pipeline.training.trainer.sft
        import vf_pipeline.training.transports.weights_disk
        """,
        SERVERS | RECORDS,
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer and a chat template."""
    from vf_pipeline.testing import make_tiny_model

    made = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(made)
    return made


@pytest.mark.parametrize("process", sorted(PROCESSES))
def test_a_process_loads_only_what_is_its_own(process: str, folder: Path) -> None:
    lines, forbidden = PROCESSES[process]
    # The program's own output goes to stderr, so that stdout holds the answer alone.
    program = "\n".join(
        [
            "import json, sys",
            f"FOLDER, answer, sys.stdout = {str(folder)!r}, sys.stdout, sys.stderr",
            *(line.removeprefix(" " * 8) for line in lines.splitlines()),
            "answer.write(json.dumps(sorted(sys.modules)))",
        ]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert forbidden & set(json.loads(done.stdout)) == set()
