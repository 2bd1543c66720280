"""How well do the graded tests of a stage hold its reference? Mutate it, and see what survives.

    python scripts/mutate_reference.py            # all stages that have graded tests
    python scripts/mutate_reference.py 3          # one stage
    python scripts/mutate_reference.py 3 --try 40 # every 40th mutation: a quick look

The mutations are Cosmic Ray's: its operators, each at each place of what students write, and of
the helpers of the answer. Given code is left alone, and so are annotations. Its runner is not used:
it starts a process for each mutation, and importing torch takes longer than the tests. Here each is
tried in a fork of a warm process, against the stage's graded tests alone.

A mutation that survives is *equal* if it does what the reference does, wherever the docstrings
allow the call: then ``scripts/mutation.toml`` says why. At least 95 % of the others must be killed,
or the exit status is 1. The result is ``tests/mutants/generated.md``.
"""

from __future__ import annotations

import argparse
import ast
import os
import resource
import signal
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

import minipaged.attention.reference  # here and not in the forks: it brings torch
import minipaged.course.judge.in_process
import minipaged.course.judge.plugin  # noqa: F401
from minipaged.course.catalog import Part, Stage, find_root, load_course

#: Need a list of names to put in: what they make is no slip of a hand.
LEFT_OUT = ("core/VariableReplacer", "core/VariableInserter")
CPU_SECONDS = 30
MEMORY = 8 << 30
ENOUGH = 0.95


@dataclass(frozen=True)
class Mutation:
    """One changed reference.

    Attributes:
        symbol: the function or class that it is in.
        was, becomes: the line that differs, before and after.
    """

    part: str
    symbol: str
    was: str
    becomes: str
    source: str


# --------------------------------------------------------------------------- making mutations
def mutations(stage: Stage, part: Part) -> Iterator[Mutation]:
    """All of a part, in the order of its lines; no two have the same syntax tree."""
    written = [*part.drop, *(symbol for task in stage.tasks_of(part) for symbol in task.symbols)]
    text = part.source.read_text(encoding="utf-8")
    seen = {_meaning(text)}
    found = []
    for name in sorted(set(operator_names()) - set(LEFT_OUT)):
        operator = get_operator(name)()
        for occurrence in range(1 << 30):
            source = mutate_code(text, operator, occurrence)
            if source is None:
                break
            meaning = _meaning(source)
            if meaning not in seen:
                seen.add(meaning)
                found.append(_mutation(part, text, source))
    for _, mutation in sorted(found, key=lambda row: row[0]):
        if any(f"{mutation.symbol}.".startswith(f"{symbol}.") for symbol in written):
            yield mutation


def _meaning(source: str) -> str:
    """The syntax tree without what is never computed; empty if there is none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def _mutation(part: Part, text: str, source: str) -> tuple[int, Mutation]:
    before, after = text.splitlines(), source.splitlines()
    line = next(
        i for i, row in enumerate(before) if row.strip() and (i >= len(after) or after[i] != row)
    )
    becomes = after[line].strip() if len(before) == len(after) else "(removed)"
    symbol = _symbol(ast.parse(text), line + 1)
    return line, Mutation(part.name, symbol, before[line].strip(), becomes, source)


def _symbol(tree: ast.AST, line: int, prefix: str = "") -> str:
    """The innermost definition around a line; a decorator belongs to what it decorates."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line <= (node.end_lineno or first):
                return _symbol(node, line, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign) and node.lineno == line and not prefix:
            return ast.unparse(node.targets[0])
    return prefix.rstrip(".")


# --------------------------------------------------------------------------- trying them
class FirstFailure:
    """A pytest plugin: the name of the check that fails first."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid.partition("::test_")[2].partition("[")[0]


def killer(root: Path, stage: Stage, mutation: Mutation) -> str:
    """The first check that a mutation fails; empty if it survives them all."""
    with tempfile.TemporaryDirectory() as impl:
        folder = Path(impl, stage.folder)
        folder.mkdir()
        for part in stage.parts:
            text = mutation.source if part.name == mutation.part else part.source.read_text()
            (folder / f"{part.name}.py").write_text(text)
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            _try(root / "tests" / stage.folder, impl, theirs)
        os.close(theirs)
        with os.fdopen(ours) as pipe:
            said = pipe.read()
        os.waitpid(pid, 0)
    return said.strip() if said else "(the process ended: a crash or a limit)"


def must_pass(root: Path, stage: Stage) -> None:
    """Where the reference itself fails, every mutation would count as killed."""
    part = stage.parts[0]
    failed = killer(root, stage, Mutation(part.name, "", "", "", part.source.read_text()))
    if failed:
        raise SystemExit(f"the reference of stage {stage.key} fails {failed}: mend that first")


def _try(tests: Path, impl: str, pipe: int) -> None:
    """In the fork: run the tests until one fails, say which, and end."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        first = FirstFailure()
        options = ["-x", "--assert=plain", "-k", "not test_counterexample"]
        # Nothing of pytest that the tests do not need: a try is a fraction of a second.
        options += ["--noconftest", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
        options += ["-p", "minipaged.course.judge.plugin"]
        status = pytest.main([str(tests), "--impl", impl, *options], plugins=[first])
        survived = status == pytest.ExitCode.OK
        os.write(pipe, ((first.name or ("" if survived else "(at import)")) + "\n").encode())
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


# --------------------------------------------------------------------------- the report
@dataclass(frozen=True)
class Reason:
    """Why some mutations of a line are equal to the reference."""

    part: str
    was: str
    becomes: tuple[str, ...]
    why: str

    def explains(self, mutation: Mutation) -> bool:
        return (self.part, self.was) == (mutation.part, mutation.was) and (
            not self.becomes or mutation.becomes in self.becomes
        )


def load_reasons(file: Path) -> list[Reason]:
    """What ``scripts/mutation.toml`` says."""
    rows = tomllib.loads(file.read_text(encoding="utf-8")).get("survivor", [])
    return [
        Reason(row["part"], row["was"], tuple(row.get("becomes", ())), row["why"].strip())
        for row in rows
    ]


def report(
    stage: Stage, survivors: list[tuple[Mutation, str]], total: int, caught: dict[str, int]
) -> str:
    """The section of one stage."""
    killed = total - len(survivors)
    equal = sum(bool(why) for _, why in survivors)
    lines = [f"## Stage {stage.number}, {stage.title[0].lower()}{stage.title[1:]}", ""]
    lines += [
        f"{total} mutations, {killed} killed ({killed / total:.1%}). {equal} are equal to the "
        f"reference, for the reasons below; of the other {total - equal}, "
        f"{killed / (total - equal):.1%} are killed.",
        "",
    ]
    lines += ["| first check that fails | mutations |", "| --- | --- |"]
    lines += [f"| {name.replace('_', ' ')} | {count} |" for name, count in caught.items()]
    lines.append("")
    for why in dict.fromkeys(why for _, why in survivors):
        lines.append(f"* {' '.join(why.split())}" if why else "* **no reason is given**")
        lines.append("")
        for mutation, reason in survivors:
            if reason == why:
                lines.append(f"      {mutation.symbol}: {mutation.was}")
                lines.append(f"      {' ' * len(mutation.symbol)}  {mutation.becomes}")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", help="as 3 (default: all that have graded tests)")
    parser.add_argument("--try", type=int, default=1, dest="every", help="only every N-th mutation")
    args = parser.parse_args()
    root = find_root()
    os.chdir(root)
    course = load_course(root)
    reasons = load_reasons(root / "scripts" / "mutation.toml")
    stages = [course.stage(key) for key in args.stages] or list(course.stages)
    sections, good = {}, True
    for stage in stages:
        tried = [m for part in stage.parts for m in mutations(stage, part)][:: args.every]
        survivors, caught = [], {check.name: 0 for check in stage.checks()}
        must_pass(root, stage)
        for i, mutation in enumerate(tried):
            name = killer(root, stage, mutation)
            if name:
                caught[name] = caught.get(name, 0) + 1
            else:
                why = next((r.why for r in reasons if r.explains(mutation)), "")
                survivors.append((mutation, why))
                if not why:
                    print(f"survives: {mutation.symbol}: {mutation.was}", flush=True)
                    print(f"          {mutation.symbol}: {mutation.becomes}", flush=True)
            if sys.stderr.isatty() or i % 50 == 49:
                print(f"stage {stage.key}: {i + 1} of {len(tried)}", end="\r", file=sys.stderr)
        must_pass(root, stage)
        caught = {name: count for name, count in caught.items() if count}
        sections[stage.number] = report(stage, survivors, len(tried), caught)
        print(sections[stage.number])
        missed = sum(not why for _, why in survivors)
        good &= missed <= (1 - ENOUGH) * (len(tried) - len(survivors) + missed)
    if args.every == 1:
        save(root / "tests" / "mutants" / "generated.md", sections)
    return 0 if good else 1


def save(file: Path, sections: dict[str, str]) -> None:
    """Put the sections of some stages into the report; those of others stay as they are."""
    old = file.read_text(encoding="utf-8").split("## Stage ")[1:] if file.is_file() else []
    merged = {text[:2]: f"## Stage {text.rstrip()}\n" for text in old} | sections
    text = "\n".join([HEAD, *(merged[number] for number in sorted(merged))])
    file.write_text(text.rstrip() + "\n", encoding="utf-8")


HEAD = """# Generated mutations of the references, against each stage's graded tests alone

Written by `python scripts/mutate_reference.py`, by hand, when a reference or its graded tests
change. Of each pair of lines the first is the reference's, the second the mutation.
"""


if __name__ == "__main__":
    raise SystemExit(main())
