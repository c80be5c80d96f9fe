#!/usr/bin/env bash
# Fills the active Python environment with the pinned packages, from the repository's root. Without
# a network: PIP_NO_INDEX=1 PIP_FIND_LINKS=wheelhouse (see `make wheelhouse`).
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
python -m pip install -q --no-deps -r envs/gpu.lock
python -m pip install -q --no-deps --no-build-isolation -e .
