"""A long-running cluster whose parts are killed at random, and what its jobs come to all the same.

    python benchmarks/chaos.py --preemptions 1000 [--seed 1] [--workers 3] [--model digits|gpt|small]
                               [--services embedded|etcd] [--json FILE]

Real processes: two coordinators, workers on two machines (each a fork server of its own), and with `--services etcd`
three members of etcd and SeaweedFS behind a proxy that can be in trouble. First a job is trained undisturbed; then the
same one again and again, while workers are told to go, killed, stopped and woken, join, and servers are killed, until
so many workers have been taken away. No job may fail, and each must come to the state of the first. Ctrl-C (or
SIGTERM) ends it with the table of what has happened so far. Exit status 1 if anything was not as it must be.

*Goodput* is the share of the gradients computed that the jobs consist of. A rate is a job's samples per second from its
submission to its end, so imports and starts count.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from chaos_monkey import PREEMPTIONS, Chaos, Trained, running_chaos  # noqa: E402

MODELS = {
    "digits": ROOT / "examples" / "digits.py",
    "gpt": ROOT / "examples" / "gpt.py",
    "small": ROOT / "tests" / "e2e" / "jobs" / "small.py",
}


def summary(chaos: Chaos, undisturbed: Trained) -> dict[str, Any]:
    """What has happened and what it came to, for JSON."""
    tally, per_gradient = chaos.tally, chaos.spec.batch_size
    done = [job for job in tally.trained if job.state == "done"]
    seconds = sum(job.seconds for job in done)
    rate = sum(job.gradients for job in done) * per_gradient / seconds if done else 0.0
    calm = undisturbed.gradients * per_gradient / undisturbed.seconds
    causes: Counter[str] = Counter()
    for job in tally.trained:
        causes.update(job.attempts)
    told = chaos.servers.proxy.told if chaos.servers.proxy else {}
    return {
        "preemptions": tally.preemptions,
        "seconds": tally.seconds,
        "events": dict(tally.events.most_common()),
        "faulty answers of S3": told,
        "jobs": len(tally.trained),
        "failed": [job.reason for job in tally.failed],
        "other digests": sum(job.digest != undisturbed.digest for job in done),
        "attempts ended": dict(causes),
        "generations": sum(job.generations for job in tally.trained),
        "losses got over": sum(job.recovered for job in tally.trained),
        "runners started": tally.runners,
        "gradients computed": tally.computed,
        "gradients counted": tally.counted,
        "goodput": tally.counted / tally.computed if tally.computed else 0.0,
        "samples/s": rate,
        "samples/s undisturbed": calm,
        "ratio": rate / calm,
    }


def show(found: dict[str, Any]) -> None:
    """The tables."""
    print("\n| event | times |\n|---|---|")
    for name, count in found["events"].items():
        print(f"| {name}{'' if name in PREEMPTIONS else ' (takes no worker away)'} | {count} |")
    for name, count in found["faulty answers of S3"].items():
        print(f"| answer of S3: {name} | {count} |")
    print("\n| | |\n|---|---|")
    print(f"| preemptions, in seconds | {found['preemptions']}, {found['seconds']:.0f} |")
    print(f"| jobs, failed, with another digest | {found['jobs']}, {len(found['failed'])}, {found['other digests']} |")
    ended = ", ".join(f"{name} {count}" for name, count in sorted(found["attempts ended"].items()))
    print(f"| attempts ended | {ended} |")
    print(f"| generations, losses got over | {found['generations']}, {found['losses got over']} |")
    print(f"| runners started | {found['runners started']} |")
    computed, counted = found["gradients computed"], found["gradients counted"]
    print(f"| goodput: gradients counted / computed | {counted} / {computed} = {found['goodput']:.3f} |")
    rates = f"{found['samples/s']:.0f}, {found['samples/s undisturbed']:.0f}"
    print(f"| samples/s, undisturbed | {rates}: {found['ratio']:.2f} |")


def main() -> int:
    """Run it; 1 if a job has failed or come to something else."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preemptions", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--model", choices=MODELS, default="digits")
    parser.add_argument("--services", choices=("embedded", "etcd"), default="embedded")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    env = {"JOB_PACE": "0.02"} if chosen.model == "small" else {}
    with tempfile.TemporaryDirectory(prefix="easyscale-chaos-") as scratch:
        options = {"services": chosen.services, "seed": chosen.seed, "workers": chosen.workers, "env": env}
        with running_chaos(Path(scratch), MODELS[chosen.model], **options) as chaos:
            undisturbed = chaos.undisturbed()
            print(f"undisturbed: {undisturbed.seconds:.1f} s, {undisturbed.digest[:16]}", flush=True)
            try:
                chaos.run(chosen.preemptions, lambda job: print(f"{chaos.tally.preemptions}: {job}", flush=True))
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            except AssertionError:
                print(chaos.cluster.logs(), file=sys.stderr)
                raise
            found = summary(chaos, undisturbed)
    show(found)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2) + "\n")
    return int(bool(found["failed"]) or found["other digests"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
