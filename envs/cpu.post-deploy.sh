#!/usr/bin/env bash
# Fills the active Python environment with the pinned packages, from the repository's root.
set -euo pipefail
export PIP_DISABLE_PIP_VERSION_CHECK=1
# Alone and with its dependencies: pip takes the CPU build where it finds one, and elsewhere the
# ordinary build with the libraries that one needs.
python -m pip install -q -c envs/cpu.lock torch==2.13.0
python -m pip install -q --no-deps -r envs/cpu.lock
python -m pip install -q --no-deps -e .
