"""A study file: read, validate, enumerate its blocks and cells."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import resources
from itertools import product
from pathlib import Path

import fastjsonschema
import yaml

from .errors import SpecamortError

SCHEMAS = Path(__file__).resolve().parent / "schemas"


@dataclass(frozen=True)
class Model:
    name: str
    source: str  # package | huggingface | directory | random
    package: str | None = None
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    shape: dict | None = None  # of a random model: a Llama's sizes, as its config names them

    @property
    def weights(self) -> str:
        return "random" if self.source == "random" else "trained"


@dataclass(frozen=True)
class Platform:
    name: str
    role: str  # calibration | heldout
    device: str  # cpu | cuda
    dtype: str
    label: str
    gpu: str | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Workload:
    name: str
    kind: str  # repeat | open
    chat: bool
    text: str
    alpha_min: float = 0.0
    alpha_max: float = 1.0
    sampling: dict = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the grid inside a block: what runs in one engine at one batch."""

    workload: str
    batch: int
    gamma: int

    def __str__(self) -> str:
        return f"{self.workload}-n{self.batch}-g{self.gamma}"


@dataclass(frozen=True, order=True)
class TraceCell:
    """What one pair of traced runs takes apart: a model's decode or verify step."""

    model: str
    context_tokens: int
    batch: int
    gamma: int

    def __str__(self) -> str:
        return f"{self.model}-c{self.context_tokens}-n{self.batch}-g{self.gamma}"


@dataclass(frozen=True)
class Profile:
    """Attributes:
    tokens: lengths of the two runs of a pair at gamma 0; at gamma, the same number of steps.
    context_tokens: of the decode steps of several models; the verify steps have the study's.
    models: other models whose decode step is taken apart beside the study's own.
    """

    tracer: str  # nsys | kineto
    tokens: tuple[int, int]
    context_tokens: int
    pairs: int
    models: tuple[Model, ...]


@dataclass(frozen=True)
class Study:
    name: str
    file: str
    model: Model
    platforms: dict[str, Platform]
    workloads: dict[str, Workload]
    gammas: tuple[int, ...]
    batches: tuple[int, ...]
    context_tokens: int
    output_tokens: int
    warmup: int
    repetitions: int
    replicates: int
    seed: int
    drafter: dict
    engine: dict
    profile: Profile

    @property
    def models(self) -> dict[str, Model]:
        return {m.name: m for m in (self.model, *self.profile.models)}

    @property
    def results(self) -> Path:
        """Where everything of the study lies, from the checkout's root."""
        return Path("results") / self.name

    def platform(self, name: str) -> Platform:
        """
        Raises:
            SpecamortError: the study has no platform of that name.
        """
        if name not in self.platforms:
            known = ", ".join(self.platforms)
            raise SpecamortError(f"{self.file}: no platform {name!r}; it has {known}")
        return self.platforms[name]

    @property
    def calibration(self) -> Platform:
        return next(p for p in self.platforms.values() if p.role == "calibration")

    @property
    def heldout(self) -> list[Platform]:
        return [p for p in self.platforms.values() if p.role == "heldout"]

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of every block, in the order of the study file."""
        return [Cell(*c) for c in product(self.workloads, self.batches, self.gammas)]

    @property
    def copied(self) -> Workload:
        """The workload whose drafts are full and accepted, so that every traced step is alike."""
        return next(w for w in self.workloads.values() if w.kind == "repeat")

    @property
    def trace_cells(self) -> list[TraceCell]:
        """Each model's decode step, and the own model's verify steps at the smallest batch."""
        smallest = [min(self.batches)]
        verify = product([self.model.name], [self.context_tokens], smallest, self.gammas)
        decode = product(self.models, [self.profile.context_tokens], [1], [0])
        cells = dict.fromkeys(TraceCell(*c) for c in (*verify, *decode))
        return sorted(cells, key=lambda c: (list(self.models).index(c.model), c.gamma))

    def trace_tokens(self, gamma: int) -> tuple[int, int]:
        """Output lengths of a pair's two runs: as many steps at every gamma."""
        short, long = (1 + (t - 1) * (gamma + 1) for t in self.profile.tokens)
        return short, long

    @property
    def max_model_len(self) -> int:
        longest = max(self.tokens_to_generate(g) for g in self.gammas)
        return self.context_tokens + longest + max(self.gammas) + 1

    def tokens_to_generate(self, gamma: int) -> int:
        """Output length at `gamma`: the first token and whole steps of gamma + 1 after it.

        With full acceptance a length that is not 1 + k(gamma + 1) wastes part of the last
        verify step, which would read as a verify cost that does not exist.
        """
        steps = -(-(self.output_tokens - 1) // (gamma + 1))
        return 1 + steps * (gamma + 1)

    def settings(self, platform: str, cell: Cell) -> dict:
        """Everything a measured number of `cell` depends on, and nothing else."""
        return self._where(platform, self.workloads[cell.workload], cell) | {
            "model": asdict(self.model),
            "context_tokens": self.context_tokens,
            "output_tokens": self.tokens_to_generate(cell.gamma),
            "warmup": self.warmup,
            "repetitions": self.repetitions,
            "seed": self.seed,
        }

    def trace_settings(self, platform: str, cell: TraceCell) -> dict:
        """Everything the traces of `cell` depend on, and nothing else."""
        return self._where(platform, self.copied, cell) | {
            "model": asdict(self.models[cell.model]),
            "context_tokens": cell.context_tokens,
            "tokens": self.trace_tokens(cell.gamma),
            "tracer": self.profile.tracer,
            "pairs": self.profile.pairs,
        }

    def _where(self, platform: str, workload: Workload, cell: Cell | TraceCell) -> dict:
        p, w = self.platforms[platform], workload
        return {
            "platform": {k: getattr(p, k) for k in ("name", "device", "dtype", "gpu", "threads")},
            "workload": {k: getattr(w, k) for k in ("name", "kind", "chat", "text", "sampling")},
            "text_sha256": hashlib.sha256(read_text(w.text).encode()).hexdigest(),
            "batch": cell.batch,
            "gamma": cell.gamma,
            "drafter": self.drafter,
            "engine": self.engine,
        }


def digest(value: object) -> str:
    """Hash of a JSON value, the same for equal values whatever their key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def read_text(name: str) -> str:
    """A text shipped with the package: passages separated by blank lines."""
    return (resources.files(__package__) / "texts" / f"{name}.txt").read_text()


def read_study(path: str | Path) -> Study:
    """Read and validate a study file.

    Raises:
        SpecamortError: naming the file and the key at fault.
    """
    return parse_study(load_yaml(path), str(path))


def parse_study(raw: object, file: str) -> Study:
    """The study in the mapping `raw`; see `read_study`."""
    _validate(raw, file)
    rest = {k: raw[k] for k in raw if k not in ("model", "platforms", "workloads", "profile")}
    profile = raw["profile"]
    study = Study(
        file=file,
        model=Model(**raw["model"]),
        platforms={k: Platform(k, **v) for k, v in raw["platforms"].items()},
        workloads={k: Workload(k, **v) for k, v in raw["workloads"].items()},
        profile=Profile(
            **profile
            | {
                "tokens": tuple(sorted(profile["tokens"])),
                "models": tuple(Model(**m) for m in profile["models"]),
            }
        ),
        **{k: tuple(v) if isinstance(v, list) else v for k, v in rest.items()},
    )
    _check(study)
    return study


def _check(study: Study) -> None:
    """What a schema cannot say."""

    def refuse(key: str, why: str):
        raise SpecamortError(f"{study.file}: {key}: {why}")

    roles = Counter(p.role for p in study.platforms.values())
    if roles["calibration"] != 1:
        refuse("platforms", f"{roles['calibration']} have role calibration; give it to exactly one")
    if 0 not in study.gammas:
        refuse("gammas", "has no 0; every speedup needs the baseline without speculation, add 0")
    if max(study.gammas) == 0:
        refuse("gammas", "has only 0; add at least one draft length to measure")
    if study.drafter["prompt_lookup_min"] > study.drafter["prompt_lookup_max"]:
        refuse("drafter.prompt_lookup_min", "is larger than prompt_lookup_max")
    if "repeat" not in {w.kind for w in study.workloads.values()}:
        refuse("workloads", "has none of kind repeat; traces and figure 3 need full acceptance")
    _check_model(study.model, "model", refuse)
    if study.model.source == "random":
        refuse("model.source", "is random; acceptance needs a trained model")
    for i, m in enumerate(study.profile.models):
        _check_model(m, f"profile.models.{i}", refuse)
    if len(study.models) != 1 + len(study.profile.models):
        refuse("profile.models", "two models have one name; rename one")
    for p in study.platforms.values():
        key = {"cpu": "threads", "cuda": "gpu"}[p.device]
        if getattr(p, key) is None:
            refuse(f"platforms.{p.name}.{key}", f"is missing; a {p.device} platform needs it")
    for w in study.workloads.values():
        if w.alpha_min > w.alpha_max:
            refuse(f"workloads.{w.name}.alpha_min", "is larger than alpha_max")
        if not (resources.files(__package__) / "texts" / f"{w.text}.txt").is_file():
            refuse(f"workloads.{w.name}.text", f"there is no text {w.text!r} in specamort/texts")


def _check_model(model: Model, where: str, refuse: Callable[[str, str], None]) -> None:
    needs = {
        "package": ("package",),
        "huggingface": ("repo", "revision"),
        "directory": ("path",),
        "random": ("shape",),
    }
    for key in needs[model.source]:
        if getattr(model, key) is None:
            refuse(f"{where}.{key}", f"is missing; source {model.source} needs it")
    if model.source == "directory":
        config = Path(model.path) / "config.json"
        if not config.is_file():
            refuse(f"{where}.path", f"{config} does not exist; name a directory that vLLM can load")


def load_yaml(path: str | Path) -> object:
    """The content of a YAML file without duplicate keys.

    Raises:
        SpecamortError: the file is missing, not YAML, or names something twice.
    """
    try:
        return yaml.load(Path(path).read_text(), _UniqueKeys)
    except OSError as e:
        raise SpecamortError(f"{path}: cannot be read ({e.strerror}); name a file there is") from e
    except yaml.YAMLError as e:
        raise SpecamortError(f"{path}: not valid YAML: {' '.join(str(e).split())}") from e


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys; a study must not lose a platform that way."""

    def construct_mapping(self, node, deep=False):
        for key, n in Counter(self.construct_object(k) for k, _ in node.value).items():
            if n > 1:
                raise yaml.YAMLError(f"duplicate name {key!r} {node.start_mark}; rename one")
        return super().construct_mapping(node, deep)


def compiled(schema: str) -> Callable[[object], object]:
    """One of our schemas as a function that raises fastjsonschema's own exception."""
    return fastjsonschema.compile(json.loads((SCHEMAS / f"{schema}.schema.json").read_text()))


def validator(schema: str) -> Callable[[object, str], None]:
    """A check of a file's content against one of our schemas, in a sentence naming the key."""
    check = compiled(schema)

    def validate(raw: object, file: str) -> None:
        try:
            check(raw)
        except fastjsonschema.JsonSchemaValueException as e:
            raise SpecamortError(f"{file}: {_sentence(e)}") from e

    return validate


def _sentence(e: fastjsonschema.JsonSchemaValueException) -> str:
    key = ".".join(e.path[1:]) or "the file"
    if e.rule in ("additionalProperties", "required"):
        known = e.definition["properties"]
        unknown = ", ".join(k for k in e.value if k not in known)
        missing = ", ".join(k for k in e.definition["required"] if k not in e.value)
        wrong = [f"unknown key {unknown}"] * bool(unknown) + [f"missing key {missing}"] * bool(
            missing
        )
        return f"{key}: {'; '.join(wrong)}; it has {', '.join(known)}"
    return f"{key}: {e.message.removeprefix(e.name).strip()}, but is {e.value!r}"


_validate = validator("study")
