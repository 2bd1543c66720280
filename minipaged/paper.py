"""``minipaged paper``: reproduce the paper's figures on the simulated engine.

Each figure gives a picture, a CSV file with the columns ``quantity, series, x, paper, ours,
error``, and a table in the terminal. What was simulated is kept in the folder, so that a second
call goes on where the first one was interrupted.

``beyond`` are experiments that the paper did not make; ``claims`` holds what the paper's text says
against its own curves and against ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from minipaged.course.own_modules import own_modules
from minipaged.course.student_parts import explained, load_parts
from minipaged.errors import ConfigError
from minipaged.options import add_parts_argument
from minipaged.sim.beyond.experiment import Lab
from minipaged.sim.beyond.experiments import EXPERIMENTS, make
from minipaged.sim.paper.claimed import CLAIMS
from minipaged.sim.paper.claims import audit, write
from minipaged.sim.paper.claims import render as render_claims
from minipaged.sim.paper.comparison import Row, render, shortcomings, tally, write_csv
from minipaged.sim.paper.figures import FIGURES
from minipaged.sim.paper.store import ResultStore
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.sweep import Sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``minipaged paper``."""
    parser.add_argument(
        "figures", nargs="+", choices=[*FIGURES, "all", *EXPERIMENTS, "beyond", "claims"],
        metavar="FIGURE",
        help=f"{', '.join(FIGURES)}, or all; beyond the paper: {', '.join(EXPERIMENTS)}, or beyond "
        "for all of these; claims: what the paper says, against its curves and ours",
    )  # fmt: skip
    parser.add_argument(
        "--quick", action="store_true",
        help="shorter traces and fewer curves: a few minutes, and rougher numbers",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, default=Path("out/paper"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N",
        help="look for each rate with so many seeds, and report the spread (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, default=-1, metavar="N", help="processes; -1: one for each core"
    )
    parser.add_argument(
        "--backend", default="loky", metavar="NAME",
        help="where simulations run: loky (this machine), ray, dask, or another of joblib's "
        "(default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--trace", type=Path, metavar="FILE",
        help="bursts: a trace whose real arrival times are served, too (Azure, BurstGPT, Mooncake, "
        "Vidur)",
    )  # fmt: skip
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="claims: write the table, as Markdown"
    )
    add_parts_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Reproduce; returns the exit status.

    Raises:
        ConfigError: an option makes no sense.
        CourseError: the parts cannot be had, or do not work.
    """
    if args.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, not {args.seeds}")
    if args.jobs < 1 and args.jobs != -1:
        raise ConfigError(f"--jobs must be at least 1, or -1, not {args.jobs}")
    modules = [file.part.name for file in own_modules()]
    # They are in place in this process alone.
    jobs = 1 if modules else args.jobs
    parts = load_parts(args.parts, also=modules)
    for note in parts.notes:
        print(f"minipaged: {note}", file=sys.stderr)
    own = bool(parts.files)
    store = ResultStore(args.out / "runs.jsonl")
    study = Study(
        Sweep(
            jobs,
            "loky" if modules else args.backend,
            parts if own else None,
            # Files change under a student's hands: their results are not kept.
            None if own else store,
            progress=sys.stderr.isatty(),
        ),
        args.quick,
        args.seeds,
    )
    if own and "claims" in args.figures:
        raise ConfigError("claims are audited with the reference's parts: their results are kept")
    names = _named(args.figures, FIGURES, "all")
    rows: list[Row] = []
    with explained(parts):
        for name in names:
            rows += _reproduce(name, study, args.out)
        for name in _named(args.figures, EXPERIMENTS, "beyond"):
            lab = Lab(args.quick, jobs, study.sweep.parts, args.trace,
                      progress=study.sweep.progress)  # fmt: skip
            print("\n".join([*make(name, lab, args.out), ""]), flush=True)
    if len(names) > 1 and tally(rows).judged:
        _conclude(rows)
    if "claims" in args.figures:
        _audit(store, args.quick, args.write)
    return 0


def _named(wanted: list[str], known: Iterable[str], every: str) -> list[str]:
    """Those that are asked for, each once. The word for all of them means those that stand beside
    it, if there are any: ``beyond bursts`` is ``bursts``."""
    found = [name for name in dict.fromkeys(wanted) if name in known]
    return list(known) if every in wanted and (every == "all" or not found) else found


def _audit(store: ResultStore, quick: bool, page: Path | None) -> None:
    findings = audit(CLAIMS, store, quick)
    if page is not None:
        write(findings, page)
    print(render_claims(findings))


def _reproduce(name: str, study: Study, out: Path) -> list[Row]:
    figure = FIGURES[name]
    rows = figure.compute(study)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(rows, out / f"{name}.csv")
    files = [out / f"{name}.csv"]
    if figure.draw is not None:
        files.append(out / f"{name}.png")
        figure.draw(rows, files[-1])
    print(render(figure.title, rows))
    print(f"{', '.join(map(str, files))}\n", flush=True)
    return rows


def _conclude(rows: list[Row]) -> None:
    print(f"All in all {tally(rows)} judged numbers are inside their tolerance.")
    for sentence in shortcomings(rows):
        print(f"! {sentence}")
