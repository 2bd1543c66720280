"""Draw the pictures of the lessons: ``python scripts/lesson_pictures.py``.

Each is a state of the pool in the course's notation, drawn by the renderer of the engine's own
pages into ``lessons/images/``. The lesson repeats the notation as the picture's text alternative.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from minipaged.viz.state import PoolState, parse_state
from minipaged.viz.svg import to_svg

FOLDER = Path(__file__).resolve().parents[1] / "lessons" / "images"


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: of the file, without ``.svg``; starts with the lesson's number.
        state: in the notation.
        block_size: tokens a block; a partly filled one is drawn half full.
        tokens: sequence -> its tokens as text, which fill its blocks and are shown as tips.
    """

    name: str
    title: str
    state: str
    block_size: int = 4
    tokens: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.svg"

    def pool_state(self) -> PoolState:
        state = parse_state(self.state, self.block_size)
        counts = {seq: len(texts) for seq, texts in self.tokens.items()}
        gpu = replace(state.gpu, num_tokens=state.gpu.num_tokens | counts)
        texts = {seq: list(texts) for seq, texts in self.tokens.items()}
        return replace(state, gpu=gpu, token_text=texts)

    def svg(self) -> str:
        return to_svg(self.pool_state(), self.title) + "\n"


PICTURES = (
    Picture(
        name="00-slots-and-blocks",
        title="Two sequences in six blocks of four slots",
        state="seq0:[0 1*] seq1:[2*] free:{3 4 5}",
        tokens={
            "seq0": ("Memory", " is", " what", " limits", " the", " batch"),
            "seq1": ("How", " many", " fit"),
        },
    ),
    Picture(
        name="01-max",
        title="Two requests with the model's full length reserved",
        state="seq0:[0 1* 2_ 3_ 4_ 5_ 6_ 7_] seq1:[8 9 10* 11_ 12_ 13_ 14_ 15_] free:{}",
    ),
    Picture(
        name="01-scattered",
        title="13 blocks are free, the longest region has 8",
        state="seq1:[4*] seq2:[6 7*] free:{0 1 2 3 5 8 9 10 11 12 13 14 15}",
    ),
    Picture(
        name="02-two-share",
        title="Two sequences share two blocks",
        state="seq0:[0 1 4*] seq1:[0 1 2*] seq2:[3*] free:{5 6 7} refs{0:2 1:2}",
    ),
    Picture(
        name="03-two-tables",
        title="Two block tables in one pool",
        state="seq0:[7 1 3*] seq1:[5 2*] free:{0 4 6}",
        tokens={
            "seq0": (
                "Four",
                " score",
                " and",
                " seven",
                " years",
                " ago",
                " our",
                " fathers",
                " brought",
            ),
            "seq1": ("It", " was", " the", " best", " of", " times", " it"),
        },
    ),
    Picture(
        name="04-forked",
        title="Two samples of one prompt",
        state="seq0:[7 1*] seq1:[7 1*] free:{0 2 3 4 5 6} refs{7:2 1:2}",
        tokens={
            "seq0": ("Four", " score", " and", " seven", " years", " ago", " our"),
            "seq1": ("Four", " score", " and", " seven", " years", " ago", " our"),
        },
    ),
    Picture(
        name="04-written",
        title="One copied a block, the other wrote in place",
        state="seq0:[7 3] seq1:[7 1] free:{0 2 4 5 6} refs{7:2}",
        tokens={
            "seq0": ("Four", " score", " and", " seven", " years", " ago", " our", " fathers"),
            "seq1": ("Four", " score", " and", " seven", " years", " ago", " our", " mothers"),
        },
    ),
    Picture(
        name="04-beam",
        title="Four beams share most of their blocks",
        state=(
            "seq1:[0 1 3 6 9*] seq4:[0 1 3 6 10*] seq2:[0 1 3 7 11*] seq5:[0 1 3 7 12*] "
            "free:{2 4 5 8} refs{0:4 1:4 3:4 6:2 7:2}"
        ),
    ),
    Picture(
        name="05-full-blocks",
        title="Two need a block, one is free",
        state="a:[0 1*] b:[2 3 4] c:[5 6] free:{7}",
    ),
    Picture(
        name="05-preempted",
        title="The last gave way",
        state="a:[0 1] b:[2 3 4 7*] free:{5 6}",
    ),
    Picture(
        name="06-full",
        title="No block is free, and seq0 needs one",
        state="seq0:[0 1] seq1:[2 4*] seq2:[2 3*] free:{} refs{2:2}",
    ),
    Picture(
        name="06-swapped",
        title="The later request is in host memory, and shares there what it shared",
        state="seq0:[0 1 3*] free:{2 4} | cpu seq1:[0 1*] seq2:[0 2*] free:{3} refs{0:2}",
    ),
    Picture(
        name="07-five-tokens",
        title="Five tokens in three blocks of two",
        state="seq0:[6 2 5*] free:{0 1 3 4 7}",
        block_size=2,
        tokens={"seq0": ("Four", " score", " and", " seven", " years")},
    ),
    Picture(
        name="07-copied",
        title="Block 5 was copied to block 0, in all layers",
        state="seq0:[6 2 5*] seq1:[6 2 0*] free:{1 3 4 7} refs{6:2 2:2}",
        block_size=2,
        tokens={
            "seq0": ("Four", " score", " and", " seven", " years"),
            "seq1": ("Four", " score", " and", " seven", " years"),
        },
    ),
    Picture(
        name="08-eleven-tokens",
        title="Eleven tokens in blocks of three, read in tiles of four",
        state="seq0:[5 2 7 0*] free:{1 3 4 6}",
        block_size=3,
        tokens={
            "seq0": (
                "Four",
                " score",
                " and",
                " seven",
                " years",
                " ago",
                " our",
                " fathers",
                " brought",
                " forth",
                " on",
            )
        },
    ),
    Picture(
        name="08-a-prompt-joins",
        title="One decodes, one brings a prompt: one step",
        state="seq0:[5 2 7 0*] seq1:[3 6*] free:{1 4}",
        block_size=3,
        tokens={
            "seq0": (
                "Four",
                " score",
                " and",
                " seven",
                " years",
                " ago",
                " our",
                " fathers",
                " brought",
                " forth",
                " on",
            ),
            "seq1": ("It", " was", " the", " best", " of"),
        },
    ),
    Picture(
        name="10-no-block",
        title="Two requests fill the pool, and seq0 needs a block",
        state="seq0:[0 1 4] seq1:[2 3 5*] free:{}",
        block_size=2,
    ),
    Picture(
        name="10-made-room",
        title="The request that was admitted last has made room",
        state="seq0:[0 1 4 5*] free:{2 3}",
        block_size=2,
    ),
)


def draw() -> Iterator[Path]:
    """Write all pictures.

    Yields:
        Each file that has changed.
    """
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        text = picture.svg()
        if not picture.path.is_file() or picture.path.read_text(encoding="utf-8") != text:
            picture.path.write_text(text, encoding="utf-8")
            yield picture.path


if __name__ == "__main__":
    for path in draw():
        print(f"drew {path.relative_to(FOLDER.parents[1])}")
