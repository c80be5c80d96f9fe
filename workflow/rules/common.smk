"""What rules ask of the study's layout."""


def records(rule):
    """A measuring rule's outputs. `update`: what exists stays, the job measures what is missing."""
    return [update(path) for path in outputs(STUDY, rule)]


def settings_of(rule):
    """What a rule's records depend on, so that a change of it runs the rule again."""
    kind = KINDS[rule]
    return lambda w: digest(
        [kind.settings(STUDY, w.platform, c) for c in kind.cells(STUDY)]
    )


def self_checked(wildcards):
    """What a measuring job waits for."""
    where = {"study": STUDY.name, "platform": wildcards.platform}
    checked = wildcards.platform in STUDY.self_checked
    return [ancient(p.format(**where)) for p in outputs(STUDY, "self_check")] * checked


def numbers_from():
    """Every file of the package that can change a number in a table."""
    package = Path("workflow/specamort")
    parts = ("analysis", "model", "records")
    return sorted(
        str(p)
        for part in parts
        for s in ("*.py", "*.yaml")
        for p in (package / part).rglob(s)
    )
