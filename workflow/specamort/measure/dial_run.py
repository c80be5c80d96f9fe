"""The dial's job: step time over acceptance that is asked for, on one engine for all draft lengths.

An engine that cannot speculate comes before and after it, so that what the machinery costs with
nothing proposed is bracketed in time.
"""

import json
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tqdm import tqdm

from .. import files
from ..errors import SpecamortError
from ..model import draws
from ..model.draws import Dialled
from ..records import record
from ..records.block import Block
from ..study import layout
from ..study.grid import DialCell, Platform, Study, told
from ..study.prompts import Prompt, prompts
from .dial import PLAN, PROPOSER
from .engine import Engine
from .provenance import now, provenance, state
from .timing import StartEngine, running

_IDLE = Dialled(0, None, None)
_TEXTS = 4  # runs a text may take until it drafts itself: a near tie may flip now and then
_TRIES = 2


class Dialler:
    """An engine that drafts what it is told, and the text of each draft length at each batch.

    Args:
        plan: file that the engine's proposer reads.
        chosen: prompts of the largest batch.
    """

    def __init__(self, study: Study, platform: Platform, engine: Engine, plan: Path, chosen):
        self._study, self._engine, self._plan = study, engine, plan
        self._where = f"{study.file}: dial: {platform.name}"
        self._chosen: list[Prompt] = chosen
        self._sampling = _sampling(study)
        self._version = 0
        self._texts: dict[tuple[int, int], list[list[int]]] = {}

    def learn(self, batch: int) -> dict[str, dict]:
        """Record the text of every draft length's own greedy run.

        Kernels at other row counts round differently, so each has its text: what comes when every
        step verifies full drafts. The first drafts are the text without any, then what came.

        Returns:
            By draft length `text_runs`, how many it took until a text drafted itself, and
            `draft_ms`, what a step's drafts took in the last of them.

        Raises:
            SpecamortError: a text does not settle.
        """
        gammas = self._study.gammas
        most = max(map(self._study.tokens_to_generate, gammas)) + 2 * max(gammas)
        first = self._run([[]] * batch, most)["token_ids"]
        runs, draft_ms = {}, {}
        for gamma in gammas:
            # the last step's draft may go on after the output's end
            tokens, text = self._study.tokens_to_generate(gamma) + gamma, first
            for n in range(1, _TEXTS + 1):
                planned = [draws.drafts(t, gamma, []) for t in text]
                self._engine.time_drafts = gamma > 0
                run = self._run(planned, tokens)
                said = run["token_ids"]
                settled, text = said == [t[:tokens] for t in text], said
                runs[str(gamma)], draft_ms[str(gamma)] = n, run.get("draft_ms")
                if settled:
                    break
            else:
                raise SpecamortError(
                    f"{self._where} n{batch}: the text at gamma {gamma} is another in each of "
                    f"{_TEXTS} runs; name another workload in dial.workload"
                )
            self._texts[batch, gamma] = text
        self._engine.time_drafts = False
        return {"text_runs": runs, "draft_ms": draft_ms}

    def repetition(self, batch: int, asked: Dialled, seed: str) -> dict:
        """One run of a batch whose drafts are accepted as asked for, by lot.

        Every sequence has the same lot: the batch ends as one, and every step verifies all of it.

        Raises:
            SpecamortError: the counters do not show it, twice.
        """
        tokens, texts = self._study.tokens_to_generate(asked.gamma), self._texts[batch, asked.gamma]
        for i in range(_TRIES):
            lengths = draws.lengths(asked, tokens, Random(f"{seed}-{i}"))
            try:
                planned = [draws.drafts(t, asked.gamma, lengths) for t in texts]
            except ValueError as e:
                raise SpecamortError(
                    f"{self._where} n{batch} gamma {asked.gamma}: {e}; lower output_tokens"
                ) from e
            run = self._run(planned, tokens)
            counters, steps, holds = run["counters"], batch * len(lengths), batch * sum(lengths)
            found = counters["drafts"], counters["drafted"], counters["accepted"]
            same = run["token_ids"] == [t[:tokens] for t in texts]
            if same and found == (steps, steps * asked.gamma, holds):
                # the engine has a position for every token of its longest draft
                by = counters["accepted_per_pos"][: asked.gamma]
                return run | {"counters": counters | {"accepted_per_pos": by}, "lengths": lengths}
        raise SpecamortError(
            f"{self._where} n{batch} gamma {asked.gamma}: {found[2]} tokens of {found[0]} drafts "
            f"were accepted where {holds} of {steps} were to be, in {'the' if same else 'another'} "
            f"text, {_TRIES} times; run again, or name another workload in dial.workload"
        )

    def _run(self, drafts: list[list[list[int]]], tokens: int) -> dict:
        batch = [p.token_ids for p in self._chosen[: len(drafts)]]
        self._version += 1
        told = [{"prompt": p, "drafts": d} for p, d in zip(batch, drafts, strict=True)]
        files.write_text(self._plan, json.dumps({"version": self._version, "sequences": told}))
        return self._engine.run(batch, tokens, self._sampling, None)


def dial_run(
    study: Study,
    platform: Platform,
    model: Path,
    results: Path,
    progress=None,
    start: StartEngine = Engine,
) -> None:
    """The dial's records of a platform that are missing, one for each batch."""
    wanted = {c: study.dial_settings(platform.name, c) for c in study.dial_cells}
    folder = layout.folder(results, "dial", platform.name)
    with Block(folder, wanted, provenance(study, platform), progress) as block:
        for setup in dict.fromkeys(c.setup for c in block.missing):
            cells = [c for c in block.missing if c.setup == setup]
            before, started = state(platform), now()
            found = _measure(study.at(setup), platform, model, cells, progress, start)
            after, finished = state(platform), now()
            for cell, measured in found.items():
                times = {"started": started, "finished": finished}
                block.write(
                    cell,
                    record.envelope(study, "dial", wanted[cell], block.source | times)
                    | {"device_state": {"before": before, "after": after}}
                    | measured,
                )


def _measure(
    study: Study,
    platform: Platform,
    model: Path,
    cells: list[DialCell],
    progress,
    start: StartEngine,
) -> dict[DialCell, dict]:
    """Every part of a record that is measured, by its cell."""
    dial, dialled = study.dial, study.dialled
    runs: dict[DialCell, list[dict]] = {c: [] for c in cells}
    visit, learnt, sampling = uuid.uuid4().hex, {}, _sampling(study)
    plain_runs = study.warmup + dial.repetitions
    total = len(cells) * (2 * plain_runs + dial.repetitions * len(dialled))
    bar = tqdm(total=total, unit="run", file=progress, disable=progress is None)

    def keep(cell: DialCell, engine: str, warmup: bool, asked: Dialled, run: dict) -> None:
        about = {"index": len(runs[cell]), "warmup": warmup, "seed": None, "visit": visit}
        about |= {"engine": engine, **asked._asdict(), "lengths": []}
        runs[cell].append(about | run)
        bar.update()

    def without(engine: Engine) -> None:
        chosen = _prompts(study, engine)
        for cell in cells:
            bar.set_description(f"{platform.name} {cell} without drafts")
            batch = [p.token_ids for p in chosen[: cell.batch]]
            for i in range(plain_runs):
                run = engine.run(batch, study.tokens_to_generate(0), sampling, None)
                keep(cell, "plain", i < study.warmup, _IDLE, run)

    # room for the texts, and for the longest draft after their ends: vLLM drafts nothing else
    room = {"max_model_len": study.max_model_len + 2 * max(study.gammas) + 1}
    with running(start, model, study, platform, 0, **room) as engine:
        without(engine)
    with (
        _plan() as plan,
        running(
            start, model, study, platform, max(study.gammas), drafter=PROPOSER, **room
        ) as engine,
    ):
        used, chosen = engine.used, _prompts(study, engine)
        dialler = Dialler(study, platform, engine, plan, chosen)
        for cell in cells:
            bar.set_description(f"{platform.name} {cell} texts")
            learnt[cell] = dialler.learn(cell.batch)
        for i in range(dial.repetitions):
            for cell in cells:
                bar.set_description(f"{platform.name} {cell} round {i}")
                order = Random(f"{study.seed}-{platform.name}-{cell}-{i}")
                for asked in order.sample(dialled, len(dialled)):
                    # the same lots on every platform
                    seed = "-".join(map(str, (study.seed, cell, i, *asked)))
                    run = dialler.repetition(cell.batch, asked, seed)
                    keep(cell, "dial", False, asked, run)
    with running(start, model, study, platform, 0, **room) as engine:
        without(engine)
    bar.close()
    return {
        cell: {
            "dial": {"platform": platform.name, **told(cell), **learnt[cell]},
            "prompt": {
                "tokens": study.context_tokens,
                "sha256": [p.sha256 for p in chosen[: cell.batch]],
            },
            "engine": used,
            "repetitions": _one_text_each(runs[cell]),
        }
        for cell in cells
    }


@contextmanager
def _plan() -> Iterator[Path]:
    """A file that the engine's processes know of."""
    with tempfile.TemporaryDirectory() as aside:
        path = Path(aside) / "plan.json"
        os.environ[PLAN] = str(path)
        try:
            yield path
        finally:
            del os.environ[PLAN]


def _one_text_each(runs: list[dict]) -> list[dict]:
    """One copy of the text is enough to compare an engine's draft lengths."""
    seen = set()
    for run in runs:
        which = run["engine"], run["gamma"]
        if run["warmup"] or which in seen:
            del run["token_ids"]
        else:
            seen.add(which)
    return runs


def _sampling(study: Study) -> dict:
    return study.workloads[study.dial.workload].sampling


def _prompts(study: Study, engine: Engine) -> list[Prompt]:
    return prompts(study, engine.tokenizer, study.timing_prompts(study.dial.workload))
