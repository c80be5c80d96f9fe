"""The planner's answer in one screen."""

from .plan import Plan
from .server_metrics import ServerMetrics


def overview(answer: Plan, server: ServerMetrics | None = None) -> str:
    """The answer in one screen."""
    lines = [answer.advice, ""]
    lines += [f"! {w}" for w in answer.warnings] + [""] * bool(answer.warnings)
    lines.append("gamma   TPOT ms (95%)          speedup (95%)        one more token   acceptance")
    for c in answer.choices:
        mark = ">" if c.gamma == answer.best.gamma else " "
        mark += "*" if server and c.gamma == server.gamma else " "
        accepted = f"{c.accepted:.2f} a draft, {c.known}" if c.gamma else ""
        pot = f"{c.pot_ms:.2f} ({c.pot_low_ms:.2f} to {c.pot_high_ms:.2f})"
        speedup = f"{c.speedup:.2f} ({c.speedup_low:.2f} to {c.speedup_high:.2f})"
        lines.append(
            f"{mark}{c.gamma:3}   {pot:23}{speedup:21}{-c.next_token_ms:+8.2f} ms      {accepted}"
        )
    lines.append("> recommended" + ("   * the server now" if server else ""))
    if server and server.tpot_ms is not None:
        lines.append(
            f"measured at the server: {server.tpot_ms:.2f} ms a token at gamma {server.gamma}, "
            f"{server.batch:.1f} requests in a step"
        )
    at = answer.best.gamma or min(answer.choices[1:], key=lambda c: c.pot_ms).gamma
    tried = answer.choices[at]
    if tried.break_even is None:
        lines.append("no break-even: no step has a draft")
    else:
        lines.append(
            f"break-even at gamma {at}: {tried.break_even:.2f} accepted tokens a draft "
            f"(alpha {tried.break_even / at:.2f}); this traffic has {tried.accepted:.2f}"
        )
    return "\n".join([*lines, "", "assumed:", *(f"- {a}" for a in answer.assumed)])
