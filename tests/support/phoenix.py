"""What the published study must ask of Phoenix, block by block, worked out by hand.

From Phoenix's documentation and `config/clusters/phoenix.yaml`. Minutes: one and a half times (four
engine starts of 5 minutes, two more for a self-check, and 74,272 steps of 20 ms); tracing starts an
engine more for each of two models; a self-check decodes nothing worth counting.
"""

SELF_CHECKS = [("self_check", p, None) for p in ("h100", "h200")]
BLOCKS = [
    *(("measure", p, r) for p in ("h100", "h200") for r in range(3)),
    *(("microbench", p, None) for p in ("h100", "h200")),
    *(("trace", p, None) for p in ("h100", "h200")),
    ("counter_run", "h100", None),
    ("reading_cost", "h100", None),
]
MINUTES = {"self_check": 15, "trace": 98, "measure": 99}


def asks(rule: str, platform: str) -> dict[str, str]:
    """By sbatch's names, the account aside."""
    return {
        "partition": f"gpu-{platform}",
        "gres": f"gpu:{platform}:1",
        "qos": "inferno",
        "cpus-per-task": "8",
        "mem": "65536",
        "time": str(MINUTES.get(rule, 83)),
    }


def job_name(rule: str, study: str, platform: str, replicate: int | None) -> str:
    """A job's comment, as the executor writes it."""
    wildcards = [study, platform] if replicate is None else [study, platform, str(replicate)]
    return f"rule_{rule}_wildcards_{'_'.join(wildcards)}"
