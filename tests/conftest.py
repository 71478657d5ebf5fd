"""What every test gets: no telemetry, one thread, and no file outside a temporary folder.

The environment is set on import, before any package reads it, and child processes inherit it.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_home = Path(tempfile.mkdtemp(prefix="vf-tests-"))
atexit.register(shutil.rmtree, _home, ignore_errors=True)

os.environ.update(
    OMP_NUM_THREADS="1",
    DO_NOT_TRACK="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    MLFLOW_DISABLE_TELEMETRY="true",
    PREFECT_SERVER_ANALYTICS_ENABLED="false",
    TOKENIZERS_PARALLELISM="false",
    NO_COLOR="1",
    # The weights that `make setup` fetched stay in reach; all that a test writes goes elsewhere.
    VF_CACHE=os.environ.get("VF_CACHE") or str(Path.home() / ".cache" / "vf-pipeline"),
    HF_HOME=str(_home / "huggingface"),
    MPLCONFIGDIR=str(_home / "matplotlib"),
    PREFECT_HOME=str(_home / "prefect"),
    XDG_CACHE_HOME=str(_home / "cache"),
)
for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
    os.environ.pop(name, None)
