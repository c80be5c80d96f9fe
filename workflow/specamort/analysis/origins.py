"""Whose numbers a table holds: measured, rehearsal, synthetic, or several of them."""

from collections.abc import Iterable

import pandas as pd


def words(values: Iterable[str]) -> str:
    """The different words in `values`, one each: what rows made of several are marked with."""
    return " ".join(sorted({w for v in values if v == v for w in v.split()}))


def not_measured(frames: Iterable[pd.DataFrame]) -> str:
    """The origins of the frames' rows other than `measured`; empty if all were measured."""
    return words(w for f in frames for o in f["origin"] for w in o.split() if w != "measured")


def merged(
    left: pd.DataFrame,
    right: pd.DataFrame,
    on: list[str],
    suffixes: tuple[str, str] = ("_x", "_y"),
) -> pd.DataFrame:
    """A merge whose rows carry the origins of both sides, as words in `origin`."""
    both = left.merge(right.rename(columns={"origin": "origin_other"}), on=on, suffixes=suffixes)
    pairs = zip(both["origin"], both.pop("origin_other"), strict=True)
    return both.assign(origin=[words(pair) for pair in pairs])
