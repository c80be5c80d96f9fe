"""YAML without duplicate names."""

from collections import Counter
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecamortError


def load_yaml(path: str | Path) -> Any:
    """The content of a YAML file without duplicate keys.

    Raises:
        SpecamortError: the file is missing, not YAML, or names something twice.
    """
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), _UniqueKeys)
    except OSError as e:
        raise SpecamortError(f"{path}: cannot be read ({e.strerror}); name a file there is") from e
    except yaml.YAMLError as e:
        raise SpecamortError(f"{path}: not valid YAML: {' '.join(str(e).split())}") from e


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys; a study must not lose a platform that way."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        for key, n in Counter(self.construct_object(k) for k, _ in node.value).items():
            if n > 1:
                raise yaml.YAMLError(f"duplicate name {key!r} {node.start_mark}; rename one")
        return super().construct_mapping(node, deep)
