"""The claims audit (``minipaged paper claims``): what the paper's text says, what its own figures
show, what ours show, and a verdict.

Nothing is simulated here: ours are the results that ``minipaged paper`` has kept. Of a study that
is not there in full, the quick one is taken, and marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NoReturn

from minipaged.errors import RequestError
from minipaged.sim.paper.jobs import Job
from minipaged.sim.paper.published import LATENCY_LEVEL
from minipaged.sim.paper.store import ResultStore
from minipaged.sim.paper.study import Study
from minipaged.sim.paper.sweep import Sweep

Values = tuple[float, ...]
#: How the numbers of a text bind: ``span``: the lowest and the highest are the two that it has;
#: ``reach``: the highest is the second; ``within``: all lie between the two.
Kind = Literal["span", "reach", "within"]
Verdict = Literal[
    "holds", "holds at another level", "not by its own curve", "not ours", "not measured here"
]

VERDICTS: dict[Verdict, str] = {
    "holds": "the paper's own data and ours agree with the text",
    "holds at another level": "the paper's own curves do not say so at the stated latency, and "
    "they do at another one",
    "not by its own curve": "the paper's own data say something else",
    "not ours": "the paper's data agree with the text, and ours do not",
    "not measured here": "the paper's data agree with the text, where it has any; ours are not "
    "there",
}

#: Relative: of the paper's own data to its text, and of bounds that a value may touch.
_OWN, _BOUND = 0.10, 0.02
#: Latencies (s/token) at which a claim may hold that does not at the stated one.
_OTHER_LEVELS = (0.1, 0.15, 0.3, 0.4, 0.5, 0.7, 0.9)


class NotStoredError(RequestError):
    """A result that a claim needs was never found."""


class StoredSweep(Sweep):
    """A sweep that only looks up what was simulated before."""

    def __init__(self, store: ResultStore) -> None:
        super().__init__(workers=1, store=store)

    def _run(self, jobs: Sequence[Job], label: str) -> NoReturn:
        raise NotStoredError(f"{label}: {len(jobs)} results are not kept in {self.store}")


@dataclass(frozen=True)
class Claim:
    """A quantitative sentence of the paper.

    Attributes:
        place: where it stands.
        text: what it says, in our words.
        unit: of its numbers.
        said: its numbers: the lowest and the highest.
        kind: how they bind.
        paper: latency level -> what its own data say; None: it has none but the text.
        ours: what a study says; None: simulation cannot tell.
        figure: what ``minipaged paper`` is asked for to measure it; empty: a closed form.
        by_level: is it read off latency curves?
        tolerance: of ours, relative.
    """

    place: str
    text: str
    unit: str
    said: tuple[float, float]
    kind: Kind
    paper: Callable[[float], Values] | None
    ours: Callable[[Study], Values] | None
    figure: str = ""
    by_level: bool = False
    tolerance: float = 0.20

    def agrees(self, values: Values, tolerance: float) -> bool:
        """Do values say what the text says?"""
        low, high = self.said
        if self.kind == "within":
            slack = _BOUND * high
            return low - slack <= min(values) and max(values) <= high + slack
        top = abs(max(values) - high) <= tolerance * high
        return top and (self.kind == "reach" or abs(min(values) - low) <= tolerance * low)


@dataclass(frozen=True)
class Finding:
    """What came of the audit of a claim.

    Attributes:
        own: what the paper's own data say, at the stated level; empty: it has none.
        ours: rounded as it is printed; empty: not measured.
        quick: are ours those of a quick study?
        level: another latency level at which the paper's curves agree with its text; None: none.
        at_level: what they say there.
    """

    claim: Claim
    own: Values
    ours: Values
    quick: bool = False
    level: float | None = None
    at_level: Values = ()

    @property
    def verdict(self) -> Verdict:
        if self.own and not self.claim.agrees(self.own, _OWN):
            return "not by its own curve" if self.level is None else "holds at another level"
        if not self.ours:
            return "not measured here"
        return "holds" if self.claim.agrees(self.ours, self.claim.tolerance) else "not ours"


# --------------------------------------------------------------------------- the audit
def audit(claims: Sequence[Claim], store: ResultStore, quick: bool = False) -> list[Finding]:
    """Look everything up.

    Args:
        store: what ``minipaged paper`` has kept.
        quick: only the results of a quick study.
    """
    studies = [Study(StoredSweep(store), quick=True)]
    if not quick:
        studies.insert(0, Study(StoredSweep(store)))
    return [_examine(claim, studies) for claim in claims]


def _examine(claim: Claim, studies: Sequence[Study]) -> Finding:
    own = claim.paper(LATENCY_LEVEL) if claim.paper is not None else ()
    finding = Finding(claim, own, ())
    if claim.by_level and claim.paper is not None and not claim.agrees(own, _OWN):
        finding = _at_another_level(finding, claim.paper)
    if claim.ours is None:
        return finding
    for study in studies:
        try:
            ours = tuple(float(_number(value)) for value in claim.ours(study))
        except NotStoredError:
            continue
        return replace(finding, ours=ours, quick=study.quick and bool(claim.figure))
    return finding


def _at_another_level(finding: Finding, paper: Callable[[float], Values]) -> Finding:
    for level in _OTHER_LEVELS:
        try:
            values = paper(level)
        except RequestError:
            continue  # a curve does not get there
        if finding.claim.agrees(values, _OWN):
            return replace(finding, level=level, at_level=values)
    return finding


# --------------------------------------------------------------------------- text
def render(findings: Sequence[Finding]) -> str:
    """For a terminal: two lines a claim."""
    lines = []
    for finding in findings:
        claim = finding.claim
        lines += [
            f"{claim.place}: {claim.text}",
            f"    text {_range(claim.said, claim.unit)}; its data {own_cell(finding)}; ours "
            f"{ours_cell(finding)}: {finding.verdict.upper()}",
        ]
    return "\n".join([*lines, "", _tally(findings)])


def markdown(findings: Sequence[Finding]) -> str:
    """A page with a table."""
    head = ("Where", "What the text says", "Its numbers", "The paper's own data", "Ours", "Verdict")
    rows = [
        (
            finding.claim.place,
            finding.claim.text,
            _range(finding.claim.said, finding.claim.unit),
            own_cell(finding),
            ours_cell(finding),
            f"**{finding.verdict}**",
        )
        for finding in findings
    ]
    return "\n".join(
        [
            "# What the paper claims, what its curves say, and what ours say",
            "",
            "`minipaged paper claims --write lessons/claims.md` writes this page, from what "
            "`minipaged paper all` has found. Nobody types a number of ours.",
            "",
            f"Request rates are compared at {LATENCY_LEVEL:g} s per output token, on the straight "
            "lines between plotted points, unless another level is named. The paper's own data are "
            f"within {_OWN:.0%} of its text where a verdict says so, and ours within the tolerance "
            "of the figure, which is 20 % in most.",
            "",
            *(f"* **{name}**: {meaning}." for name, meaning in VERDICTS.items()),
            "",
            *(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)),
            "",
            _tally(findings),
            "",
        ]
    )


def write(findings: Sequence[Finding], path: Path) -> None:
    """Write the page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(findings), encoding="utf-8")


def own_cell(finding: Finding) -> str:
    """What the paper's data say."""
    if not finding.own:
        return "none but the text"
    cell = _range(finding.own, finding.claim.unit)
    if finding.level is not None:
        at_level = _range(finding.at_level, finding.claim.unit)
        cell += f" (at {finding.level:g} s/token {at_level})"
    return cell


def ours_cell(finding: Finding) -> str:
    """What ours say, or how to find out."""
    if finding.ours:
        return _range(finding.ours, finding.claim.unit) + " (quick)" * finding.quick
    if finding.claim.ours is None:
        return "needs a GPU: `minipaged kernels bench`"
    return f"not there: `minipaged paper {finding.claim.figure}`"


def _tally(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.verdict for finding in findings)
    listed = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    return f"Of {len(findings)} claims: {listed}."


def _range(values: Sequence[float], unit: str) -> str:
    low, high = _number(min(values)), _number(max(values))
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def _number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
