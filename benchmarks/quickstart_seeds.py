"""Run the quickstart chain over several seeds, and say how long it takes and what each stage adds.

    python benchmarks/quickstart_seeds.py --seeds 0 1 2 3 4 --json seeds.json

Every seed is a fresh run of the real chain: other data, other samples, other training order.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = "configs/quickstart.toml"


def run_seed(seed: int, more: list[str]) -> dict[str, Any]:
    """Return what one fresh run took and gained."""
    from benchmarks.machine import calibrate
    from vf_pipeline.configs import PipelineConfig, load_config
    from vf_pipeline.runs import run_dir_of

    settings = [f"seed={seed}", f'name="seed-{seed}"', *more]
    sets = [part for setting in settings for part in ("--set", setting)]
    speed = calibrate()
    started_at = time.monotonic()
    command = [sys.executable, "-m", "flows", "run", CONFIG, "--fresh", *sets]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    folder = run_dir_of(load_config(PipelineConfig, [str(ROOT / CONFIG)], settings))
    manifest = json.loads((folder / "manifest.json").read_text())
    took = json.loads((folder / "took.json").read_text())
    stages = manifest["stages"]
    means = {
        which: stages[f"evaluate-{which}"]["outputs"]["result"]["reward"]["mean"]
        for which in ("base", "sft", "trained")
    }
    return {
        "seed": seed,
        "exit_code": done.returncode,
        "wall_s": round(time.monotonic() - started_at, 1),
        **took,
        "gflops": speed,
        **means,
        "gains": stages["promote"]["outputs"]["gains"],
        "stage_s": {name: record["duration_s"] for name, record in stages.items()},
    }


def main() -> None:
    """Run the seeds, print a table, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    head = (
        "seed  wall s  GFLOP/s  scaled to 50  peak GB   base    SFT  trained  GRPO − SFT (95 % CI)"
    )
    sys.stdout.write(head + "\n")
    for seed in args.seeds:
        row = run_seed(seed, args.set)
        rows.append(row)
        gain = row["gains"]["grpo"]
        sys.stdout.write(
            f"{seed:4}  {row['wall_s']:6.0f}  {row['gflops']:7.0f}  "
            f"{row['wall_s'] * row['gflops'] / 50:12.0f}  {row['peak_gb']:7.1f}  "
            f"{row['base']:5.3f}  {row['sft']:5.3f}    {row['trained']:5.3f}  "
            f"{100 * gain['mean']:+.1f} ({100 * gain['low']:.1f} … {100 * gain['high']:.1f})\n"
        )
        sys.stdout.flush()
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2) + "\n")
    clear = sum(row["gains"]["grpo"]["low"] > 0 for row in rows)
    worst = max(row["wall_s"] for row in rows)
    sys.stdout.write(f"worst {worst:.0f} s; GRPO − SFT excludes zero in {clear} of {len(rows)}\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
