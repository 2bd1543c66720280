"""The generated files of an exercise, written from the reference and from ``course.toml``."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst

from minipaged.course import syntax
from minipaged.course.catalog import COUNTEREXAMPLE, Counterexample, Course, Part, Stage
from minipaged.course.projection import project
from minipaged.course.stubs import is_stub as is_stub
from minipaged.course.stubs import stub_message as stub_message
from minipaged.errors import CourseError


def stage_texts(course: Course, stage: Stage) -> dict[Path, str]:
    """Every generated file of a stage, by its path below ``exercises/``."""
    folder = Path(stage.folder)
    texts = {folder / f"{p.name}.py": exercise_text(course, stage, p) for p in stage.parts}
    if stage.counterexample is not None:
        texts[folder / COUNTEREXAMPLE] = counterexample_text(stage)
    return texts


def exercise_text(course: Course, stage: Stage, part: Part) -> str:
    """The skeleton of a part: the reference with stubs for the bodies of its tasks, and a guide at
    the end of its docstring.

    Raises:
        CourseError: the reference lacks a symbol that the course names.
    """
    source = (course.root / part.source).read_text(encoding="utf-8")
    if stage.closed:  # this is all that there is of it here
        return source
    messages = {
        symbol: stub_message(stage, task)
        for task in stage.tasks_of(part)
        for symbol in task.symbols
    }
    try:
        module = project(source, messages, part.drop, part.keep)
        return _with_guide(module, _guide(course, stage, part)).code
    except CourseError as error:
        raise CourseError(f"stage {stage.number}, part {part.name}: {error}") from None


def skeleton_module_source(course: Course, part: Part) -> str:
    """What stands in for the reference where the part is graded: :func:`exercise_text`."""
    stage, _ = course.parts[part.name]
    return exercise_text(course, stage, part)


def counterexample_text(stage: Stage) -> str:
    """The skeleton of ``counterexample.toml``: the claim, the rules and an empty trace.

    Raises:
        CourseError: the stage asks for none.
    """
    asked = stage.counterexample
    if asked is None:
        raise CourseError(f"stage {stage.key} asks for no counterexample")
    first = next(iter(asked.names), "")
    sample = f'"x = {first}.some_method(2)", "{first}.other_method(x)"'
    if not first:
        sample = f'"x = {asked.functions[0]}(…)"'
    start = [f"{name} = {made}" for name, made in asked.names.items()]
    lines = [
        f"Stage {stage.key}, counterexample: {asked.points} points.",
        "",
        *_wrap(f"The claim: {asked.claim}"),
        "",
        *_wrap(
            "Show that it is wrong. Write the operations after which an implementation that "
            f"believes the claim differs from a right one, at most {asked.max_operations} of them."
        ),
        "",
        *_column("at the start", start),
        *_column("functions", list(asked.functions)),
        *_column("compared", [*asked.observe, "what the operation returns or raises"]),
        "",
        *_wrap(
            f"An operation calls {_callable(asked)}, with numbers or earlier results. Its own "
            "result may get a name:"
        ),
        "",
        f"    trace = [{sample}]",
        "",
        f"check   minipaged grade {stage.key}",
        f"stuck   minipaged hint {stage.key}.counterexample",
    ]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "\ntrace = []\n"


def _callable(asked: Counterexample) -> str:
    methods = ["a public method"] if asked.names else []
    functions = ["one of the functions"] if asked.functions else []
    return " or ".join(methods + functions)


def _column(title: str, rows: list[str]) -> list[str]:
    return [f"    {title if i == 0 else '':<14}{row}" for i, row in enumerate(rows)]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, syntax.LINE_LENGTH - 2)


def _guide(course: Course, stage: Stage, part: Part) -> str:
    """Where to read, what to write, what to run and what comes next."""
    tasks = stage.tasks_of(part)
    width = max(len(task.title) for task in tasks)
    rows = [f"{task.id}  {task.title:<{width}}  {task.points:>2} points" for task in tasks]
    steps = [
        ("read", stage.lesson),
        *(("" if i else "write", row) for i, row in enumerate(rows)),
        *([("also", _also(stage))] if _also(stage) else []),
        ("check", f"minipaged grade {stage.key}"),
        ("stuck", f"minipaged hint {tasks[0].id}"),
        ("use it", stage.use),
        ("next", _next(course, stage, part)),
    ]
    title = stage.title[0].lower() + stage.title[1:]
    return f"Stage {stage.key}, {title}::\n\n" + "".join(f"    {a:<8}{b}\n" for a, b in steps)


def _also(stage: Stage) -> str:
    """What the stage's other points are for."""
    robustness = sum(check.points for check in stage.robustness)
    words = [f"robustness {robustness} points"] if robustness else []
    if stage.counterexample is not None:
        words.append(f"{COUNTEREXAMPLE} {stage.counterexample.points} points")
    return ", ".join(words)


def _next(course: Course, stage: Stage, part: Part) -> str:
    """What comes after this file."""
    if part != stage.parts[-1]:
        return f"{stage.parts[stage.parts.index(part) + 1].name}.py, beside this file"
    if stage != course.stages[-1]:
        return course.stages[course.stages.index(stage) + 1].lesson
    return "minipaged grade: how far you are"


def _with_guide(module: cst.Module, guide: str) -> cst.Module:
    doc = syntax.docstring(module.body)
    if doc is None:
        raise CourseError("the reference has no docstring")
    (expression,) = doc.body
    assert isinstance(expression, cst.Expr)
    text = syntax.code(expression.value)
    if not text.endswith('"""'):
        raise CourseError('the docstring of the reference must stand in """')
    told = f'{text[:-3].rstrip()}\n\n{guide}"""'
    return module.with_deep_changes(expression, value=cst.SimpleString(told))
