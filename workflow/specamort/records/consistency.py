"""What no schema can say of a record: that its numbers can be those of one measurement."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain, pairwise
from typing import Any

from ..model.draws import Dialled, dialled
from ..model.roofline import point
from ..model.step import per_step
from ..study.settings import digest
from .types import Counters, DeviceState, Provenance, Record, Repetition

_LONGEST = timedelta(days=366)  # that a measurement can have taken


def contradiction(record: Record) -> str | None:
    """The first key that contradicts the rest, and how; null if none does.

    Args:
        record: one that its schema takes.
    """
    return next(_contradictions(record), None)


def _contradictions(r: Record) -> Iterator[str]:
    if digest(r["settings"]) != r["settings_hash"]:
        yield "settings_hash: is not that of its settings"
    yield from _times(r["provenance"])
    yield from _readings(r.get("device_state"), "device_state")
    for i, one in enumerate(r.get("visits", [])):
        yield from _readings(one["device_state"], f"visits.{i}.device_state")
    if r["kind"] == "microbenchmark":
        yield from _microbenchmark(r)
    elif r["kind"] == "trace":
        yield from _trace(r)
    elif r["kind"] == "self_check":
        yield from _asked(r, {"self_check.platform": (r["self_check"]["platform"], "platform")})
    elif r["kind"] == "dial":
        yield from _dial(r)
    else:
        yield from _cell(r)


def _asked(r: Record, told: dict[str, tuple[Any, str]]) -> Iterator[str]:
    """Keys whose value is not what the record's own settings ask for, by the settings' key."""
    for key, (value, at) in told.items():
        asked = r["settings"][at]
        asked = asked["name"] if isinstance(asked, dict) else asked
        if value != asked:
            yield f"{key}: is {value!r:.60}, its settings.{at} {asked!r:.60}"


def _times(p: Provenance) -> Iterator[str]:
    keys = [k for k in ("job_started", "started", "finished") if k in p]
    times = []
    for key in keys:
        try:
            times.append(datetime.fromisoformat(p[key]))
        except ValueError:
            times.append(datetime.min)
        if times[-1].tzinfo is None or not 1970 <= times[-1].year < 9999:
            yield f"provenance.{key}: is {p[key]!r:.60}, no time with its zone (ISO 8601)"
            return
    for (before, a), (after, b) in pairwise(zip(keys, times, strict=True)):
        if b < a:
            yield f"provenance.{after}: is before {before}"
    if times[-1] - times[-2] > _LONGEST:
        yield "provenance.finished: is more than a year after started"


def _readings(state: DeviceState | None, where: str) -> Iterator[str]:
    if not state or not state["before"] or not state["after"]:
        return
    before, after = state["before"], state["after"]
    if after["at_ns"] < before["at_ns"]:
        yield f"{where}.after.at_ns: is before that of before"
    if before.keys() != after.keys():
        yield f"{where}.after: is of another kind of device than before"
        return
    a, b = before.get("throttled_ns"), after.get("throttled_ns")
    if a and b and a.keys() != b.keys():
        yield f"{where}.after.throttled_ns: has other causes than before"


def _cell(r: Record) -> Iterator[str]:
    cell, settings, runs = r["cell"], r["settings"], r["repetitions"]
    yield from _asked(
        r,
        {
            "cell.platform": (cell["platform"], "platform"),
            "cell.workload": (cell["workload"], "workload"),
            "cell.batch": (cell["batch"], "batch"),
            "cell.gamma": (cell["gamma"], "gamma"),
            "prompt.tokens": (r["prompt"]["tokens"], "context_tokens"),
        },
    )
    if len(r["prompt"]["sha256"]) != cell["batch"]:
        yield f"prompt.sha256: has {len(r['prompt']['sha256'])} prompts, the batch {cell['batch']}"
    for key in ("lengths", "categories"):
        if len(r["prompt"].get(key, r["prompt"]["sha256"])) != cell["batch"]:
            yield f"prompt.{key}: are not as many as the batch, {cell['batch']}"
    if max(r["prompt"].get("lengths", [0]), default=0) > r["prompt"]["tokens"]:
        yield "prompt.lengths: has one longer than prompt.tokens"
    warmups = [x["warmup"] for x in runs]
    timed, asked = warmups.count(False), settings["repetitions"]
    if r["kind"] == "timing":
        once = [True] * settings["warmup"] + [False] * asked
        whole = warmups == once * len(r.get("visits", [r]))
        yield from _visits(r, len(once))
    else:
        asked = settings.get("replicates", asked) if r["kind"] == "counter_run" else asked
        whole = timed >= asked
    if not whole:
        yield (
            f"repetitions: has {len(runs) - timed} warm-ups and {timed} others, its settings ask "
            f"for {settings['warmup']} and {asked}"
        )
    for i, run in enumerate(runs):
        if run["index"] != i:
            yield f"repetitions.{i}.index: is {run['index']}"
        if run["counters"] is None and r["kind"] != "reading_cost":
            yield f"repetitions.{i}.counters: is null; the engine's statistics were off"
        found = _repetition(run, cell["batch"], cell["gamma"], settings["output_tokens"])
        yield from (f"repetitions.{i}.{why}" for why in found)


def _visits(r: Record, once: int) -> Iterator[str]:
    """Of a timing record whose every visit measured `once` repetitions at a time."""
    found = [(x["visit"], x.get("when")) for x in r["repetitions"]]
    if r["cell"]["gamma"]:
        if len(set(found)) > 1:
            yield "repetitions: are of several visits; only gamma 0 is measured in each"
        return
    visits = [(v["visit"], v["when"]) for v in r.get("visits", [])]
    if not visits:
        yield "visits: is missing; a record of gamma 0 says when each visit measured it"
    if len(set(visits)) < len(visits) or any(
        when == "last" and (i == 0 or visits[i - 1] != (visit, "first"))
        for i, (visit, when) in enumerate(visits)
    ):
        yield "visits: must be the first, or the first and the last, of each visit"
    if found != [v for v in visits for _ in range(once)]:
        yield "visits: are others than those of its repetitions"


def _dial(r: Record) -> Iterator[str]:
    about, settings, runs = r["dial"], r["settings"], r["repetitions"]
    yield from _asked(
        r,
        {
            "dial.platform": (about["platform"], "platform"),
            "dial.batch": (about["batch"], "batch"),
            "prompt.tokens": (r["prompt"]["tokens"], "context_tokens"),
        },
    )
    if len(r["prompt"]["sha256"]) != about["batch"]:
        yield f"prompt.sha256: has {len(r['prompt']['sha256'])} prompts, the batch {about['batch']}"
    if len(settings["gammas"]) != len(settings["output_tokens"]):
        yield "settings.output_tokens: must be as many as settings.gammas"
        return
    tokens = dict(zip(settings["gammas"], settings["output_tokens"], strict=True))
    asked = dialled(settings["gammas"], settings["acceptances"], settings["patterns"])
    wanted = Counter({("dial", False, d): settings["repetitions"] for d in asked})
    idle = Dialled(0, None, None)
    wanted["plain", False, idle] = 2 * settings["repetitions"]
    wanted["plain", True, idle] = 2 * settings["warmup"]
    found: Counter[tuple[str, bool, Dialled]] = Counter()
    for i, run in enumerate(runs):
        found[_which(run)] += 1
        if _which(run) not in wanted:
            yield f"repetitions.{i}: is {_said(*_which(run))}, which its settings do not ask for"
            continue
        if run["index"] != i:
            yield f"repetitions.{i}.index: is {run['index']}"
        if run["counters"] is None:
            yield f"repetitions.{i}.counters: is null; the engine's statistics were off"
            continue
        gamma = run["gamma"]
        yield from (
            f"repetitions.{i}.{why}"
            for why in chain(
                _repetition(run, about["batch"], gamma, tokens[gamma]),
                _drawn(run, run["counters"], about["batch"], gamma, tokens[gamma]),
            )
        )
    for key in found | wanted:
        if found[key] != wanted[key]:
            yield f"repetitions: has {found[key]} {_said(*key)}, its settings ask for {wanted[key]}"


def _which(run: Repetition) -> tuple[str, bool, Dialled]:
    return run["engine"], run["warmup"], Dialled(run["gamma"], run["acceptance"], run["pattern"])


def _said(engine: str, warmup: bool, asked: Dialled) -> str:
    told = f"{engine} gamma {asked.gamma} acceptance {asked.acceptance} {asked.pattern or ''}"
    return told.strip() + " (warm-up)" * warmup


def _drawn(run: Repetition, c: Counters, batch: int, gamma: int, tokens: int) -> Iterator[str]:
    """Of a dial's run: do the counters show what was drawn?"""
    lengths = run["lengths"]
    if not _numbers(lengths, gamma):
        yield f"lengths: must hold numbers of tokens, {gamma} at most"
        return
    if not gamma:
        if lengths or c["drafts"]:
            yield "lengths: must be empty, and counters.drafts 0, where nothing is drafted"
        return
    if sum(lengths) + len(lengths) != tokens - 1:
        yield f"lengths: come to {sum(lengths) + len(lengths)} tokens, after the first {tokens - 1}"
    steps = batch * len(lengths)
    by = [batch * sum(n > i for n in lengths) for i in range(gamma)]
    if (run["decode_steps"], c["drafts"], c["drafted"]) != (steps, steps, steps * gamma):
        yield f"counters.drafted: must be {gamma} in each of {steps} drafts and decode steps"
    if c["accepted_per_pos"] != by:
        yield "counters.accepted_per_pos: is not what lengths says"


def _repetition(run: Repetition, batch: int, gamma: int, tokens: int) -> Iterator[str]:
    sequences, steps, counters = run["sequences"], run["decode_steps"], run["counters"]
    if len(sequences) != batch:
        yield f"sequences: are {len(sequences)}, the batch is {batch}"
    for i, s in enumerate(sequences):
        if s["tokens"] != tokens:
            yield f"sequences.{i}.tokens: is {s['tokens']}, its settings.output_tokens {tokens}"
        if (s["pot_ms"] is None) != (counters is None):
            yield f"sequences.{i}.pot_ms: must be null where counters is, and only there"
    most = batch * (tokens - 1)  # a token a step
    if not most / (gamma + 1) <= steps <= most:
        yield f"decode_steps: is {steps}; {most} tokens take {-(-most // (gamma + 1))} to {most}"
    if counters:
        yield from _counters(counters, gamma, steps)
    given = [s["decode_steps"] for s in sequences if "decode_steps" in s]
    if given and (len(given) != batch or sum(given) != steps):
        yield f"sequences: have {sum(given)} decode_steps, the run {steps}"
    yield from _lists(run, batch, tokens)


def _counters(c: Counters, gamma: int, steps: int) -> Iterator[str]:
    """Of a run whose sequences took so many decode steps together."""
    drafts, drafted, accepted, by = (
        *(c["drafts"], c["drafted"], c["accepted"]),
        c["accepted_per_pos"],
    )
    if drafts > steps:
        yield f"counters.drafts: is {drafts}, more than the {steps} decode steps"
    if not drafts <= drafted <= drafts * gamma:
        yield f"counters.drafted: is {drafted}; {drafts} drafts have {drafts} to {drafts * gamma}"
    if accepted > drafted:
        yield f"counters.accepted: is {accepted}, more than the {drafted} drafted"
    # vLLM has no positions before its first draft
    if len(by) != gamma and (by or drafts):
        yield f"counters.accepted_per_pos: has {len(by)} positions, a draft {gamma}"
    if sum(by) != accepted or any(b > a for a, b in pairwise([drafts, *by])):
        yield f"counters.accepted_per_pos: cannot be that of {accepted} accepted in {drafts} drafts"


def _lists(run: Repetition, batch: int, tokens: int) -> Iterator[str]:
    """The long ones, which a schema would take too long over."""
    times, got, ids = (run.get(k) for k in ("step_ms", "step_tokens", "token_ids"))
    verified, counters = run.get("step_drafts"), run["counters"]
    if times is not None and not _numbers(times, 1e9, {int, float}):
        yield "step_ms: must hold times in ms"
    if got is not None:
        flat = list(chain.from_iterable(got)) if {*map(type, got)} <= {list} else [None]
        if not _numbers(flat, 1e9):
            yield "step_tokens: must hold the tokens of each sequence, step by step"
        elif sum(flat) != batch * tokens or len(flat) != run["decode_steps"] + batch:
            yield "step_tokens: does not add up to the sequences' tokens and decode_steps"
    if times is not None and got is not None and len(times) != len(got):
        yield f"step_ms: has {len(times)} steps, step_tokens {len(got)}"
    if verified is not None:
        if not _numbers(verified, batch):
            yield f"step_drafts: must hold numbers of sequences, {batch} at most"
        elif counters is None or sum(verified) != counters["drafts"]:
            yield "step_drafts: does not add up to counters.drafts"
        elif times is not None and len(verified) != len(times) - 1:
            yield f"step_drafts: has {len(verified)} steps, step_ms {len(times) - 1} after one"
    if ids is not None:
        if not all(_numbers(x, 1e9) for x in ids):
            yield "token_ids: must hold token ids, a list for each sequence"
        elif [len(x) for x in ids] != [tokens] * batch:
            yield f"token_ids: must hold {batch} texts of {tokens} tokens"


def _numbers(values: list[Any], most: float, types: Iterable[type] = (int,)) -> bool:
    return {*map(type, values)} <= {*types} and (
        not values or (min(values) >= 0 and max(values) <= most)
    )


def _microbenchmark(r: Record) -> Iterator[str]:
    bench, settings = r["microbenchmark"], r["settings"]
    yield from _asked(
        r,
        {
            "microbenchmark.context": (bench["context"], "context_tokens"),
            "microbenchmark.seed": (bench["seed"], "seed"),
        },
    )
    asked = {point(n, g) for n in settings["batches"] for g in settings["gammas"]}
    names = [point(p["batch"], p["gamma"]) for p in bench["passes"]]
    if missing := sorted(asked.difference(names)):
        yield f"microbenchmark.passes: lacks {', '.join(missing)}"
    if twice := sorted({n for n in names if names.count(n) > 1}):
        yield f"microbenchmark.passes: has {', '.join(twice)} twice"
    for i, one in enumerate(bench["passes"]):
        if len(one["samples_ms"]) != len(bench["order"]):
            yield (
                f"microbenchmark.passes.{i}.samples_ms: are {len(one['samples_ms'])}, the rounds "
                f"of order {len(bench['order'])}"
            )
    for i, order in enumerate(bench["order"]):
        if missing := sorted(asked.difference(order)):
            yield f"microbenchmark.order.{i}: lacks {', '.join(missing)}"


def _trace(r: Record) -> Iterator[str]:
    t = r["trace"]
    same = ("platform", "model", "context_tokens", "batch", "gamma", "tracer")
    yield from _asked(r, {f"trace.{k}": (t[k], k) for k in same})
    if t["tokens_per_step"] != (rows := t["batch"] * (t["gamma"] + 1)):
        yield f"trace.tokens_per_step: is {t['tokens_per_step']}, batch (gamma + 1) is {rows}"
    if len(t["pairs"]) != r["settings"]["pairs"]:
        yield f"trace.pairs: are {len(t['pairs'])}, its settings.pairs {r['settings']['pairs']}"
    for i, pair in enumerate(t["pairs"]):
        for name in ("untraced", "traced"):
            where, runs = f"trace.pairs.{i}.{name}", pair[name]
            for j, run in enumerate(runs):
                seen, counters = run["trace"], run.get("counters")
                if (seen is None) != (name == "untraced"):
                    yield f"{where}.{j}.trace: must be null in an untraced run, and only there"
                if seen and seen["steps"] not in (None, len(seen["step_tokens"])):
                    yield f"{where}.{j}.trace.steps: is {seen['steps']}, step_tokens has others"
                if counters:
                    found = _counters(counters, t["gamma"], run["decode_steps"] * t["batch"])
                    yield from (f"{where}.{j}.{why}" for why in found)
            try:
                per_step(*runs, rows)
            except ValueError as e:
                yield f"{where}: {e}"
