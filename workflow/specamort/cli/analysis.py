"""Records to tables, figures and the report."""

from ..study.study_file import read_study


def add(command) -> None:
    command("analyse", _analyse, "records to tables")
    command("figures", _figures, "tables to figures")
    command("report", _report, "tables and figures to one HTML page")


def _analyse(args, terminal) -> None:
    from ..analysis.tables import write_tables

    study = read_study(args.study)
    write_tables(study, study.results)


def _figures(args, terminal) -> None:
    from ..report.figures import draw_all

    study = read_study(args.study)
    draw_all(study, study.results)


def _report(args, terminal) -> None:
    from ..report.page import write_report

    study = read_study(args.study)
    write_report(study, study.results)
