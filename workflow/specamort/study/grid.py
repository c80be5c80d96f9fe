"""What a study is: models, platforms, workloads, and the grid of cells they span."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ..errors import SpecamortError
from ..model.draws import Dialled, dialled
from .prompt_files import file_sha256
from .settings import Settings
from .texts import text_sha256


@dataclass(frozen=True)
class Model:
    name: str
    source: str  # package | huggingface | directory | random
    package: str | None = None
    repo: str | None = None
    revision: str | None = None
    path: str | None = None
    shape: dict[str, int] | None = None  # a random model's: a Llama's sizes by their config's names

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
    shared_above: float | None = None  # cores that others may take; decides marks, no measurement


@dataclass(frozen=True)
class Workload:
    """Attributes:
    text: that is shipped; empty of kind file.
    path, category, lengths, tokens: of kind file: see docs/prompts.md.
    """

    name: str
    kind: str  # repeat | open | file
    chat: bool
    text: str = ""
    alpha_min: float = 0.0
    alpha_max: float = 1.0
    sampling: dict[str, float] = field(default_factory=dict)
    path: str = ""
    category: str | None = None
    lengths: str = "as_they_are"  # | exact
    tokens: tuple[int, int] | None = None

    @property
    def settings(self) -> Settings:
        """What a measured number depends on."""
        common = {k: getattr(self, k) for k in ("name", "kind", "chat", "sampling")}
        if self.kind != "file":
            return common | {"text": self.text}
        tokens = list(self.tokens) if self.tokens else None
        return common | {"category": self.category, "lengths": self.lengths, "tokens": tokens}

    @property
    def sha256(self) -> str:
        """Of the text, or the file, that its prompts are made of."""
        return file_sha256(self.path) if self.kind == "file" else text_sha256(self.text)


# vLLM's `speculative_config`, but for the draft length; `model` is one of the study's by its name
Drafter = dict[str, Any]


class EngineOptions(TypedDict):
    """vLLM's engine arguments, and which of its two model runners must be in use.

    Others of vLLM's may be there too, under their own names.
    """

    model_runner: str  # v1 | v2
    enforce_eager: bool
    enable_prefix_caching: bool
    async_scheduling: bool
    gpu_memory_utilization: NotRequired[float]


@dataclass(frozen=True)
class Axis:
    """What a study may vary beside platform, workload, batch and draft length.

    Attributes:
        name: its column in every table.
        values: of a study, by name and in the order of its file.
        at: the study with one of them alone.
        label: a value in the name of a file.
        of_baseline: whether gamma 0 differs between its values.
    """

    name: str
    values: "Callable[[Study], Iterable[Any]]"
    at: "Callable[[Study, Any], Study]"
    label: Callable[[Any], str] = str
    of_baseline: bool = True


AXES = (
    Axis("mode", lambda s: s.modes, lambda s, v: replace(s, modes={v: s.modes[v]})),
    Axis("context", lambda s: s.contexts, lambda s, v: s.at_context(v), "c{}".format),
    Axis(
        "drafter",
        lambda s: s.drafters,
        lambda s, v: replace(s, drafters={v: s.drafters[v]}),
        of_baseline=False,
    ),
)


@dataclass(frozen=True)
class Setup:
    """A point on `AXES`.

    Attributes:
        name: of the values that vary in the study; empty where none does.
        baseline: the same of those that gamma 0 depends on.
        values: by axis.
    """

    name: str
    baseline: str
    values: dict[str, Any]


@dataclass(frozen=True, order=True)
class Cell:
    """One point of the grid inside a block: what runs in one engine at one batch.

    `setup` is that of `Setup.name`, or of `Setup.baseline` at gamma 0.
    """

    workload: str
    batch: int
    gamma: int
    setup: str = ""

    def __str__(self) -> str:
        return _joined(f"{self.workload}-n{self.batch}-g{self.gamma}", self.setup)


@dataclass(frozen=True, order=True)
class TraceCell:
    """What one pair of traced runs takes apart: a model's decode or verify step.

    `mode` is empty where the study has one.
    """

    model: str
    context_tokens: int
    batch: int
    gamma: int
    mode: str = ""

    def __str__(self) -> str:
        where = f"{self.model}-c{self.context_tokens}-n{self.batch}-g{self.gamma}"
        return _joined(where, self.mode)


@dataclass(frozen=True, order=True)
class DialCell:
    """What one dial record holds: every draft length and acceptance at a batch.

    `setup` is that of `Setup.baseline`.
    """

    batch: int
    setup: str = ""

    def __str__(self) -> str:
        return _joined(f"n{self.batch}", self.setup)


def _joined(*parts: str) -> str:
    return "-".join(filter(None, parts))


def told(cell: Cell | TraceCell | DialCell) -> dict[str, Any]:
    """Its fields as a record has them: none of an axis that does not vary."""
    return {k: v for k, v in asdict(cell).items() if v != ""}


def takes_proposers(engine: EngineOptions) -> bool:
    """Whether vLLM takes a proposer of one's own there, as a dial is."""
    return engine["model_runner"] == "v1" and not engine["async_scheduling"]


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
class Tracing:
    """Attributes:
    tokens: lengths of the two runs of a pair at gamma 0; at gamma, the same number of steps.
    context_tokens: of the decode steps of several models; the verify steps have the study's.
    models: other models whose decode step is taken apart beside the study's own.
    batches, gammas: of the verify steps; empty for all of the study's.
    """

    tracer: str  # nsys | kineto
    tokens: tuple[int, int]
    context_tokens: int
    pairs: int
    models: tuple[Model, ...]
    batches: tuple[int, ...] = ()
    gammas: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dial:
    """Attributes:
    workload: whose text is drafted.
    acceptances: probabilities that a token of a draft holds while those before it did.
    patterns: geometric (token by token) or whole (all of a draft or nothing, at the same mean).
    repetitions: of each draft length, acceptance and pattern.
    """

    workload: str
    acceptances: tuple[float, ...]
    patterns: tuple[str, ...]
    repetitions: int


@dataclass(frozen=True)
class Study:
    name: str
    file: str
    model: Model
    platforms: dict[str, Platform]
    workloads: dict[str, Workload]
    gammas: tuple[int, ...]
    batches: tuple[int, ...]
    context_tokens: int  # the first
    output_tokens: int
    warmup: int
    repetitions: int
    replicates: int
    seed: int
    drafters: dict[str, Drafter]
    modes: dict[str, EngineOptions]
    tracing: Tracing
    window: tuple[int, int]  # of the lookup that judges whether a passage can be copied
    dial: Dial | None = None
    more_contexts: tuple[int, ...] = ()
    rehearses: str | None = None  # the study file that this one stands in for, see `rehearse`

    @property
    def origin(self) -> str:
        """What its records, tables and figures say of where their numbers come from."""
        return "rehearsal" if self.rehearses else "measured"

    @property
    def engine(self) -> EngineOptions:
        """Of the first mode: that of a study at one point of its axes."""
        return next(iter(self.modes.values()))

    @property
    def drafter(self) -> Drafter:
        """The first."""
        return next(iter(self.drafters.values()))

    @property
    def contexts(self) -> tuple[int, ...]:
        return self.context_tokens, *self.more_contexts

    def at_context(self, tokens: int) -> "Study":
        return replace(self, context_tokens=tokens, more_contexts=())

    @cached_property
    def setups(self) -> list[Setup]:
        """Every point on `AXES`, in the order of the study file."""
        found = []
        for point in product(*(a.values(self) for a in AXES)):
            labels = [
                (a.of_baseline, a.label(v))
                for a, v in zip(AXES, point, strict=True)
                if a.name in self.varied
            ]
            found.append(
                Setup(
                    name=_joined(*(x for _, x in labels)),
                    baseline=_joined(*(x for of_baseline, x in labels if of_baseline)),
                    values={a.name: v for a, v in zip(AXES, point, strict=True)},
                )
            )
        return found

    @property
    def varied(self) -> list[str]:
        """Names of the axes on which the study has more than one point."""
        return [a.name for a in AXES if len(list(a.values(self))) > 1]

    @cached_property
    def slices(self) -> dict[str, "Study"]:
        """By the name of a setup, and of a baseline, the study there: one point on every axis."""
        found: dict[str, Study] = {}
        for setup in self.setups:
            one = self
            for axis in AXES:
                one = axis.at(one, setup.values[axis.name])
            found[setup.name] = one
            found.setdefault(setup.baseline, one)
        return found

    @cached_property
    def baselines(self) -> dict[str, str]:
        """By the name of a setup, that of its gamma 0; which has itself."""
        return {s.baseline: s.baseline for s in self.setups} | {
            s.name: s.baseline for s in self.setups
        }

    def at(self, setup: str) -> "Study":
        """The study at one point on every axis, by the name of a setup or of a baseline."""
        return self.slices[setup]

    @property
    def traced_models(self) -> dict[str, Model]:
        """The study's own, and those whose decode step is taken apart beside it."""
        return {m.name: m for m in (self.model, *self.tracing.models)}

    @property
    def models(self) -> dict[str, Model]:
        """Every model of the study, those that draft too."""
        drafting = (d["model"] for d in self.drafters.values() if "model" in d)
        return self.traced_models | {m["name"]: Model(**m) for m in drafting}

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

    def replicate(self, number: int) -> int:
        """
        Raises:
            SpecamortError: the study has no replicate of that number.
        """
        if not 0 <= number < self.replicates:
            raise SpecamortError(
                f"{self.file}: no replicate {number}; it has 0 to {self.replicates - 1}"
            )
        return number

    @property
    def calibration(self) -> Platform:
        return next(p for p in self.platforms.values() if p.role == "calibration")

    @property
    def heldout(self) -> list[Platform]:
        return [p for p in self.platforms.values() if p.role == "heldout"]

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells of every block, in the order of the study file."""
        return list(
            dict.fromkeys(
                Cell(*c, setup.name if c[2] else setup.baseline)
                for setup in self.setups
                for c in product(self.workloads, self.batches, self.gammas)
            )
        )

    @property
    def full_acceptance_workload(self) -> Workload:
        """The workload whose drafts are full and accepted, so that every traced step is alike."""
        return next(w for w in self.workloads.values() if w.kind == "repeat")

    @property
    def trace_cells(self) -> list[TraceCell]:
        """Of each mode, every model's decode step, and the own model's verify steps by batch."""
        batches, gammas = self.tracing.batches or self.batches, self.tracing.gammas or self.gammas
        verify = product([self.model.name], self.contexts, batches, gammas)
        decode = product(self.traced_models, [self.tracing.context_tokens], [1], [0])
        modes = self.modes if len(self.modes) > 1 else [""]
        found = dict.fromkeys(TraceCell(*c, mode) for c, mode in product((*verify, *decode), modes))
        order = list(self.traced_models)
        return sorted(
            found, key=lambda c: (list(modes).index(c.mode), order.index(c.model), c.gamma)
        )

    @property
    def dial_cells(self) -> list[DialCell]:
        """None of a mode that takes no proposer of one's own."""
        if not self.dial:
            return []
        setups = dict.fromkeys(
            s.baseline for s in self.setups if takes_proposers(self.at(s.baseline).engine)
        )
        return [DialCell(n, s) for s, n in product(setups, self.batches)]

    @property
    def dialled(self) -> list[Dialled]:
        """What a dial's round asks for at each batch, once each."""
        if not self.dial:
            return []
        return dialled(self.gammas, self.dial.acceptances, self.dial.patterns)

    @property
    def dial_steps(self) -> int:
        """Decode steps of a platform's dial at most: no draft holds, and texts settle late."""
        if not self.dial:
            return 0
        texts = 4 * sum(self.tokens_to_generate(g) for g in self.gammas)
        plain = 2 * (self.warmup + self.dial.repetitions) * self.tokens_to_generate(0)
        rounds = sum(self.tokens_to_generate(d.gamma) for d in self.dialled)
        return len(self.dial_cells) * (texts + plain + self.dial.repetitions * rounds)

    @property
    def reading_cost_cell(self) -> Cell:
        """The cell that is run with the engine's statistics on, then off."""
        first = next(iter(self.workloads)), min(self.batches), max(self.gammas)
        return Cell(*first, self.setups[0].name)

    def trace_tokens(self, gamma: int) -> tuple[int, int]:
        """Output lengths of a pair's two runs: about as many tokens at every gamma.

        Equal steps would let a copy at a large gamma run out of its passage, and end in a longer
        context than the steps it is compared with.
        """
        short, long = (_whole_steps(t, gamma) for t in self.tracing.tokens)
        return short, long

    def trace_length(self, cell: TraceCell) -> int:
        """Prompt and output of a traced run at most."""
        return cell.context_tokens + self.trace_tokens(cell.gamma)[1] + cell.gamma + 1

    @property
    def self_checked(self) -> list[str]:
        """Platforms whose first job is a self-check: GPUs, and what stands in for them."""
        checked = (p for p in self.platforms.values() if p.device == "cuda" or self.rehearses)
        return [p.name for p in checked]

    def self_check_settings(self, platform: str) -> Settings:
        """What a check must have checked to hold for this study; its software comes beside."""
        return {
            "platform": self._device(platform),
            "model": asdict(self.model),
            "drafter": self.traced_drafter,
            "engine": self.engine,
            "tracer": self.tracing.tracer,
        }

    @property
    def traced_drafter(self) -> Drafter:
        """One that drafts on the host, if there is one: no kernel of its in a verify step."""
        lookups = (d for d in self.drafters.values() if d["method"] == "ngram")
        return next(lookups, self.drafter)

    def timing_prompts(self, workload: str) -> PromptSet:
        """What the timed cells of a workload ask for; counter runs share it."""
        tokens = {g: self.tokens_to_generate(g) for g in self.gammas}
        count = self.replicates * max(self.batches)
        return PromptSet(workload, self.context_tokens, count, self.output_tokens, tokens)

    def trace_prompts(self, context_tokens: int) -> PromptSet:
        """What the traces at a context ask for."""
        cells = [c for c in self.trace_cells if c.context_tokens == context_tokens]
        tokens = {c.gamma: self.trace_tokens(c.gamma)[1] for c in cells}
        count, longest = max(c.batch for c in cells), self.tracing.tokens[1]
        return PromptSet(self.full_acceptance_workload.name, context_tokens, count, longest, tokens)

    @property
    def prompt_sets(self) -> list[PromptSet]:
        """Every prompt that the study's jobs ask for, traces included."""
        traced = dict.fromkeys((*self.contexts, self.tracing.context_tokens))
        timed = (
            self.at_context(c).timing_prompts(w) for c in self.contexts for w in self.workloads
        )
        return [*timed, *map(self.trace_prompts, traced)]

    @property
    def max_model_len(self) -> int:
        longest = max(self.tokens_to_generate(g) for g in self.gammas)
        return max(self.contexts) + longest + max(self.gammas) + 1

    def tokens_to_generate(self, gamma: int) -> int:
        """Output length of a timed repetition at `gamma`; see `_whole_steps`."""
        return _whole_steps(self.output_tokens, gamma)

    def traced_at(self, cell: TraceCell) -> "Study":
        """The study as its engine is started for a trace: one mode, one drafter."""
        modes = {cell.mode: self.modes[cell.mode]} if cell.mode else self.modes
        return replace(self, modes=modes, drafters={"traced": self.traced_drafter})

    def timing_settings(self, platform: str, cell: Cell) -> Settings:
        """Everything a measured number of `cell` depends on, and nothing else."""
        one = self.at(cell.setup)
        # where drafters vary, what has none is all of theirs
        drafter = one.drafter if cell.gamma or len(self.drafters) == 1 else None
        return one._where(platform, self.workloads[cell.workload], cell) | {
            "drafter": drafter,
            "model": asdict(self.model),
            "context_tokens": one.context_tokens,
            "output_tokens": self.tokens_to_generate(cell.gamma),
            "warmup": self.warmup,
            "repetitions": self.repetitions,
            "seed": self.seed,
            # which passages: replicate r begins at the r-th stretch of so many prompts
            "prompts_per_replicate": max(self.batches) if self.replicates > 1 else None,
        }

    def counter_settings(self, platform: str, cell: Cell) -> Settings:
        """Those of the cell, and how many replicates' prompts the counter run has."""
        return self.timing_settings(platform, cell) | {"replicates": self.replicates}

    def trace_settings(self, platform: str, cell: TraceCell) -> Settings:
        """Everything the traces of `cell` depend on, and nothing else."""
        one = self.traced_at(cell)
        return one._where(platform, self.full_acceptance_workload, cell) | {
            "drafter": one.drafter,
            "model": asdict(self.traced_models[cell.model]),
            "context_tokens": cell.context_tokens,
            "tokens": self.trace_tokens(cell.gamma),
            "tracer": self.tracing.tracer,
            "pairs": self.tracing.pairs,
        }

    def dial_settings(self, platform: str, cell: DialCell) -> Settings:
        """Everything a platform's dial at a batch depends on, and nothing else.

        `gamma` is the most that its engine can draft.
        """
        assert self.dial
        w, one = self.workloads[self.dial.workload], self.at(cell.setup)
        return one._where(platform, w, Cell(w.name, cell.batch, max(self.gammas))) | {
            # a text drafts itself; a lookup only chooses which passage is copied
            "drafter": one.drafter if w.kind == "repeat" else None,
            "model": asdict(self.model),
            "context_tokens": one.context_tokens,
            "gammas": list(self.gammas),
            "output_tokens": [self.tokens_to_generate(g) for g in self.gammas],
            "acceptances": list(self.dial.acceptances),
            "patterns": list(self.dial.patterns),
            "warmup": self.warmup,
            "repetitions": self.dial.repetitions,
            "seed": self.seed,
        }

    @property
    def benched(self) -> dict[str, int]:
        """A platform's microbenchmarks: the context of each, by the name of its record."""
        if len(self.contexts) == 1:
            return {"kernels": self.context_tokens}
        return {f"kernels-c{c}": c for c in self.contexts}

    def microbench_settings(self, platform: str, name: str = "kernels") -> Settings:
        """Everything a platform's microbenchmark depends on, and nothing else."""
        return {
            "platform": self._device(platform),
            "model": asdict(self.model),
            "context_tokens": self.benched[name],
            "batches": list(self.batches),
            "gammas": list(self.gammas),
            # so many that an interval is a few samples wide, not the extremes; a rehearsal's means
            # nothing
            "rounds": 5 if self.rehearses else 40,
            "seed": self.seed,
        }

    def _device(self, platform: str) -> Settings:
        p = self.platforms[platform]
        return {k: getattr(p, k) for k in ("name", "device", "dtype", "gpu", "threads")}

    def _where(self, platform: str, workload: Workload, cell: Cell | TraceCell) -> Settings:
        w = workload
        return {
            "platform": self._device(platform),
            "origin": self.origin,
            "workload": w.settings,
            "text_sha256": w.sha256,
            "draftable": w.alpha_min if w.kind == "repeat" else None,
            "batch": cell.batch,
            "gamma": cell.gamma,
            "engine": self.engine,
        }


def _whole_steps(tokens: int, gamma: int) -> int:
    """At least `tokens`: the first one, and whole steps of gamma + 1 after it.

    With full acceptance a length that is not 1 + k(gamma + 1) wastes part of the last verify
    step, which would read as a verify cost that does not exist.
    """
    return 1 + -(-(tokens - 1) // (gamma + 1)) * (gamma + 1)
