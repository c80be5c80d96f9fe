"""What a record holds, as JSON gives it; `study/schemas/record.schema.json` says what must be."""

from typing import Literal, NotRequired, TypedDict

from ..model import roofline, step
from ..study.settings import Settings

Kind = Literal[
    "timing", "counter_run", "reading_cost", "microbenchmark", "trace", "self_check", "dial"
]
Origin = Literal["measured", "rehearsal", "synthetic"]


class Device(TypedDict):
    name: str
    uuid: str


class Source(TypedDict):
    """Where a job runs, and what code and software: a record's provenance without its times.

    A GPU's also holds what `Reading` does, of when the job began.

    Attributes:
        packages: hash of everything installed.
        nsys: its version; null where the study has another tracer.
        cuda: that torch was built for; null for a CPU build.
        driver_cuda: the newest CUDA that the driver serves, 100 major + minor.
    """

    config_hash: str
    code_version: str
    code_hash: str
    packages: str
    nsys: NotRequired[str | None]
    vllm: str
    torch: str
    cuda: str | None
    python: NotRequired[str]
    host: str
    job_id: str | None
    job_started: NotRequired[str]
    device: Device
    driver: str
    driver_cuda: NotRequired[int]
    clocks_mhz: dict[str, float]


class Provenance(Source):
    """ISO 8601 times of the record's own beginning and end."""

    started: str
    finished: str


class Reading(TypedDict):
    """A GPU's state at one moment.

    Attributes:
        throttle_reasons: NVML's bit mask.
        throttled_ns: time below the asked clocks by cause; null where the GPU does not count it.
        at_ns: monotonic.
        other_processes: pids of strangers.
    """

    clocks_mhz: dict[str, float]
    power_cap_w: float
    temperature_c: int
    throttle_reasons: int
    throttled_ns: dict[str, int] | None
    at_ns: int
    other_processes: list[int]


class CpuReading(TypedDict):
    """What a machine's cores have done so far, all together.

    Attributes:
        at_ns: monotonic.
        steal_s: time that the hypervisor gave to others.
        others_s: time of processes that are not this job's, the kernel's too.
        cores: how many there are.
    """

    at_ns: int
    steal_s: float
    others_s: float
    cores: int


class DeviceState(TypedDict):
    """Null where nothing tells the state."""

    before: Reading | CpuReading | None
    after: Reading | CpuReading | None


class Visit(TypedDict):
    """One time that gamma 0 was measured: the first or the last thing in a job's visit."""

    visit: str
    when: Literal["first", "last"]
    started: str
    finished: str
    device_state: DeviceState


class Cell(TypedDict):
    """`setup` is missing where the study has one; see `study.grid.Setup`."""

    platform: str
    replicate: int
    workload: str
    batch: int
    gamma: int
    setup: NotRequired[str]


class Block(TypedDict):
    """What a timing record's cell was measured in, with the cells of every gamma.

    Attributes:
        gamma_order: of a visit that measures all of them, in each setup.
        setup_order: the same of the setups that gamma 0 depends on; missing where there is one.
    """

    id: str
    seed: str
    gamma_order: list[int]
    setup_order: NotRequired[list[str]]


class Prompt(TypedDict):
    """`tokens` in each prompt of the batch, at most, and a hash of each.

    Of prompts from a file also `lengths`, the tokens of each, and their `categories`.
    """

    tokens: int
    sha256: list[str]
    lengths: NotRequired[list[int]]
    categories: NotRequired[list[str]]


class Engine(TypedDict):
    """What vLLM really chose; see `measure.engine_probe`."""

    model_runner: str
    runner_class: NotRequired[str]
    drafter: str | None
    attention_backend: str
    cudagraph_mode: str
    environment: dict[str, str]


class Sequence(TypedDict):
    """One sequence of a batch.

    Attributes:
        pot_ms: by the engine core's clock; null where its statistics are off.
        arrival_pot_ms: by ours.
        sha256: of its tokens.
        decode_steps: engine steps that gave it tokens after the first.
    """

    tokens: int
    pot_ms: float | None
    arrival_pot_ms: float
    sha256: str
    decode_steps: NotRequired[int]


class Counters(TypedDict):
    """By how much vLLM's counters rose in a run; `accepted_per_pos` by position in the draft."""

    engine_steps: int
    drafts: int
    drafted: int
    accepted: int
    accepted_per_pos: list[int]


class Repetition(TypedDict):
    """One run of a batch.

    Attributes:
        decode_steps: of all sequences together.
        step_ms: arrival of each engine step after the first.
        step_tokens: what each sequence got in each.
        counters: null where the engine's statistics are off.
        token_ids: by sequence, in the first timed repetition.
        step_drafts: of how many sequences each engine step after the first token's verified a
            draft; null where the engine's statistics are off.
        draft_ms: what a step's drafts took, median; of the last warm-up, where they are timed.
        visit: the job's visit to the block; `when` in it a repetition of gamma 0 was run.

    A dial's also:
        engine: plain (one that cannot speculate) or dial (one that could).
        acceptance: probability that a token of a draft should hold; null where nothing is drafted.
        pattern: geometric or whole; see `model.draws`.
        lengths: tokens of each step's draft that were to be accepted, the same in every sequence.
    """

    index: int
    warmup: bool
    seed: NotRequired[int | None]
    sequences: list[Sequence]
    decode_steps: int
    step_ms: NotRequired[list[float]]
    step_tokens: NotRequired[list[list[int]]]
    counters: Counters | None
    token_ids: NotRequired[list[list[int]]]
    step_drafts: NotRequired[list[int] | None]
    draft_ms: NotRequired[float | None]
    visit: NotRequired[str]
    when: NotRequired[Literal["first", "last"]]
    engine: NotRequired[Literal["plain", "dial"]]
    gamma: NotRequired[int]
    acceptance: NotRequired[float | None]
    pattern: NotRequired[Literal["geometric", "whole"] | None]
    lengths: NotRequired[list[int]]


class TraceRun(step.Run):
    counters: NotRequired[Counters | None]


class TracePair(TypedDict):
    """Each the shorter and the longer run."""

    untraced: list[TraceRun]
    traced: list[TraceRun]


class Trace(TypedDict):
    """The traced runs of one step.

    Attributes:
        weights: trained | random.
        tokens_per_step: tokens that a step computes: batch (gamma + 1).
    """

    platform: str
    model: str
    context_tokens: int
    batch: int
    gamma: int
    mode: NotRequired[str]
    weights: str
    tracer: str
    tokens_per_step: int
    pairs: list[TracePair]


class Microbenchmark(roofline.Bench):
    """`hash` is of the rest."""

    hash: str


class Check(TypedDict):
    """`fix` is null if it passed."""

    what: str
    fix: str | None


class SelfCheck(TypedDict):
    platform: str
    checks: list[Check]


class Dial(TypedDict):
    """By draft length `text_runs`, runs until a text drafted itself, and `draft_ms`, of a step."""

    platform: str
    batch: int
    setup: NotRequired[str]
    text_runs: NotRequired[dict[str, int]]
    draft_ms: NotRequired[dict[str, float | None]]


class Record(TypedDict):
    """Any kind of record; which parts beside the first seven it has is its kind's.

    Attributes:
        visits: of a timing record at gamma 0, in the place of `device_state`.
        shared_above: in no file; of the study that `record.held` reads it for, see `exclusions`.
    """

    schema_version: int
    kind: Kind
    origin: Origin
    study: str
    settings: Settings
    settings_hash: str
    provenance: Provenance
    cell: NotRequired[Cell]
    block: NotRequired[Block]
    prompt: NotRequired[Prompt]
    engine: NotRequired[Engine]
    device_state: NotRequired[DeviceState]
    visits: NotRequired[list[Visit]]
    shared_above: NotRequired[float]
    repetitions: NotRequired[list[Repetition]]
    microbenchmark: NotRequired[Microbenchmark]
    trace: NotRequired[Trace]
    self_check: NotRequired[SelfCheck]
    dial: NotRequired[Dial]
