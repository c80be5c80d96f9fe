"""A study file: read, validate, enumerate its blocks and cells."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import fastjsonschema
import yaml

from .errors import SpecamortError

SCHEMAS = Path(__file__).resolve().parent / "schemas"
TEXTS = Path(__file__).resolve().parent / "texts"


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
class PromptSet:
    """Prompts of one workload and context, and what is generated after them.

    Attributes:
        count: how many different ones.
        output_tokens: before they are rounded up to whole steps.
        tokens: the output at each gamma.
    """

    workload: str
    context_tokens: int
    count: int
    output_tokens: int
    tokens: dict[int, int]


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
    rehearses: str | None = None  # the study file that this one stands in for, see `rehearse`

    @property
    def origin(self) -> str:
        """What its records, tables and figures say of where their numbers come from."""
        return "rehearsal" if self.rehearses else "measured"

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
        """Each model's decode step, and the own model's verify steps at every batch."""
        verify = product([self.model.name], [self.context_tokens], self.batches, self.gammas)
        decode = product(self.models, [self.profile.context_tokens], [1], [0])
        cells = dict.fromkeys(TraceCell(*c) for c in (*verify, *decode))
        return sorted(cells, key=lambda c: (list(self.models).index(c.model), c.gamma))

    @property
    def reading_cost_cell(self) -> Cell:
        """The cell that is run with the engine's statistics on, then off."""
        return Cell(next(iter(self.workloads)), min(self.batches), max(self.gammas))

    def trace_tokens(self, gamma: int) -> tuple[int, int]:
        """Output lengths of a pair's two runs: about as many tokens at every gamma.

        Equal steps would let a copy at a large gamma run out of its passage, and end in a longer
        context than the steps it is compared with.
        """
        short, long = (_whole_steps(t, gamma) for t in self.profile.tokens)
        return short, long

    def trace_length(self, cell: TraceCell) -> int:
        """Prompt and output of a traced run at most."""
        return cell.context_tokens + self.trace_tokens(cell.gamma)[1] + cell.gamma + 1

    @property
    def self_checked(self) -> list[str]:
        """Platforms whose first job is a self-check: GPUs, and what stands in for them."""
        checked = (p for p in self.platforms.values() if p.device == "cuda" or self.rehearses)
        return [p.name for p in checked]

    def self_check_settings(self, platform: str) -> dict:
        """What a check must have checked to hold for this study; its software comes beside."""
        return {
            "platform": self._device(platform),
            "model": asdict(self.model),
            "drafter": self.drafter,
            "engine": self.engine,
            "tracer": self.profile.tracer,
        }

    def timing_prompts(self, workload: str) -> PromptSet:
        """What the timed cells of a workload ask for; counter runs share it."""
        tokens = {g: self.tokens_to_generate(g) for g in self.gammas}
        count = self.replicates * max(self.batches)
        return PromptSet(workload, self.context_tokens, count, self.output_tokens, tokens)

    def trace_prompts(self, context_tokens: int) -> PromptSet:
        """What the traces at a context ask for."""
        cells = [c for c in self.trace_cells if c.context_tokens == context_tokens]
        tokens = {c.gamma: self.trace_tokens(c.gamma)[1] for c in cells}
        count, longest = max(c.batch for c in cells), self.profile.tokens[1]
        return PromptSet(self.copied.name, context_tokens, count, longest, tokens)

    @property
    def prompt_sets(self) -> list[PromptSet]:
        """Every prompt that the study's jobs ask for, traces included."""
        contexts = dict.fromkeys((self.context_tokens, self.profile.context_tokens))
        return [*map(self.timing_prompts, self.workloads), *map(self.trace_prompts, contexts)]

    @property
    def max_model_len(self) -> int:
        longest = max(self.tokens_to_generate(g) for g in self.gammas)
        return self.context_tokens + longest + max(self.gammas) + 1

    def tokens_to_generate(self, gamma: int) -> int:
        """Output length of a timed repetition at `gamma`; see `_whole_steps`."""
        return _whole_steps(self.output_tokens, gamma)

    def settings(self, platform: str, cell: Cell) -> dict:
        """Everything a measured number of `cell` depends on, and nothing else."""
        return self._where(platform, self.workloads[cell.workload], cell) | {
            "model": asdict(self.model),
            "context_tokens": self.context_tokens,
            "output_tokens": self.tokens_to_generate(cell.gamma),
            "warmup": self.warmup,
            "repetitions": self.repetitions,
            "seed": self.seed,
            # which passages: replicate r begins at the r-th stretch of so many prompts
            "prompts_per_replicate": max(self.batches) if self.replicates > 1 else None,
        }

    def counter_settings(self, platform: str, cell: Cell) -> dict:
        """Those of the cell, and how many replicates' prompts the counter run has."""
        return self.settings(platform, cell) | {"replicates": self.replicates}

    def trace_settings(self, platform: str, cell: TraceCell) -> dict:
        """Everything the traces of `cell` depend on, and nothing else."""
        return self._where(platform, self.copied, cell) | {
            "model": asdict(self.models[cell.model]),
            "context_tokens": cell.context_tokens,
            "tokens": self.trace_tokens(cell.gamma),
            "tracer": self.profile.tracer,
            "pairs": self.profile.pairs,
        }

    def microbench_settings(self, platform: str) -> dict:
        """Everything a platform's microbenchmark depends on, and nothing else."""
        return {
            "platform": self._device(platform),
            "model": asdict(self.model),
            "context_tokens": self.context_tokens,
            "batches": list(self.batches),
            "gammas": list(self.gammas),
        }

    def _device(self, platform: str) -> dict:
        p = self.platforms[platform]
        return {k: getattr(p, k) for k in ("name", "device", "dtype", "gpu", "threads")}

    def _where(self, platform: str, workload: Workload, cell: Cell | TraceCell) -> dict:
        w = workload
        return {
            "platform": self._device(platform),
            "origin": self.origin,
            "workload": {k: getattr(w, k) for k in ("name", "kind", "chat", "text", "sampling")},
            "text_sha256": text_sha256(w.text),
            "draftable": w.alpha_min if w.kind == "repeat" else None,
            "batch": cell.batch,
            "gamma": cell.gamma,
            "drafter": self.drafter,
            "engine": self.engine,
        }


def _whole_steps(tokens: int, gamma: int) -> int:
    """At least `tokens`: the first one, and whole steps of gamma + 1 after it.

    With full acceptance a length that is not 1 + k(gamma + 1) wastes part of the last verify
    step, which would read as a verify cost that does not exist.
    """
    return 1 + -(-(tokens - 1) // (gamma + 1)) * (gamma + 1)


def digest(value: object) -> str:
    """Hash of a JSON value, the same for equal values whatever their key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@cache
def read_text(name: str) -> str:
    """A text shipped with the package: passages separated by blank lines.

    Raises:
        SpecamortError: it is not the text that was shipped.
    """
    content = (TEXTS / f"{name}.txt").read_bytes()
    if hashlib.sha256(content).hexdigest() != text_sha256(name):
        raise SpecamortError(
            f"{TEXTS / name}.txt: was cut or edited since it was shipped; restore it "
            "(`git checkout`), its prompts would not be the study's"
        )
    return content.decode()


def texts() -> list[str]:
    """Names of the texts that are shipped."""
    return list(_shipped())


def text_sha256(name: str) -> str:
    return _shipped()[name]["sha256"]


@cache
def _shipped() -> dict[str, dict]:
    return yaml.safe_load((TEXTS / "texts.yaml").read_text())


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
    for p in study.platforms.values():
        if p.device == "cpu" and study.engine["model_runner"] == "v2":
            refuse(
                "engine.model_runner",
                f"v2 needs Triton, which the CPU engine of platform {p.name} lacks; say v1",
            )
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
        if w.text not in texts():
            refuse(f"workloads.{w.name}.text", f"no text is {w.text!r}; name one of {texts()}")
        read_text(w.text)


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
