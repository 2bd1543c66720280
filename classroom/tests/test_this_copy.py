"""This copy of the course is whole: what is closed is a skeleton, and a skeleton earns nothing."""

from __future__ import annotations

import pytest

from minipaged.course.catalog import load_course
from minipaged.course.grade import grade_stage
from minipaged.course.skeleton import stage_texts
from minipaged.course.submission import read_submission

COURSE = load_course()


@pytest.mark.parametrize("name", COURSE.closed_parts)
def test_a_closed_module_is_a_skeleton(name):
    stage, part = COURSE.closed_parts[name]
    file = read_submission(COURSE, stage, "ref").files[name]
    assert file.stubs == {s for task in stage.tasks_of(part) for s in task.symbols}


@pytest.mark.parametrize("stage", COURSE.stages, ids=lambda stage: stage.folder)
def test_a_skeleton_earns_nothing(stage, tmp_path):
    for path, text in stage_texts(COURSE, stage).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    score = grade_stage(COURSE, stage, read_submission(COURSE, stage, str(tmp_path)))
    assert score.points == 0
    assert {task.state for task in score.tasks} == {"not started"}
