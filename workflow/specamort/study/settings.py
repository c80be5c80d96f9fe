"""The hash that tells whether a record was made with the settings a study asks for now."""

import hashlib
import json
from typing import Any

Settings = dict[str, Any]  # what a measured number depends on, as JSON


def digest(value: object) -> str:
    """Hash of a JSON value, the same for equal values whatever their key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
