"""The cut of the modules, read from their syntax trees.

The course stands on it: a student's part can replace ours only if nobody reaches past the
constructor for another part. Nothing is imported here but in the last test.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Lowest first. A module imports from its own unit and from lower layers, never sideways. A unit
# is a module or package of minipaged, or several that belong together.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("config", "sampling_params", "hardware", "device", "text_table"),
    ("sequence",),
    ("contracts", "outputs", "trace"),
    ("attention", "audit", "invariants", "viz"),
    ("kvcache", "models tokenizer fetch", "sampling"),
    ("scheduling", "executor", "capacity"),
    ("parts",),
    ("engine",),
    ("llm",),
    ("sim",),
    ("course",),
    ("options",),
    ("generate", "demo", "bench", "plan", "paper", "simulation", "doctor", "server"),
    ("cli",),
)
LAYER_OF = {
    module: (height, unit)
    for height, layer in enumerate(LAYERS)
    for unit in layer
    for module in unit.split()
}

# The stages of the course and the modules that their students write.
PARTS = {
    "00 sizing": "kvcache.sizing",
    "01 contiguous": "kvcache.naive kvcache.buddy kvcache.contiguous kvcache.accounting",
    "02 block allocator": "kvcache.block_allocator",
    "03 block table": "kvcache.block_table attention.reference",
    "04 copy-on-write": "kvcache.copy_on_write",
    "05 scheduler": "scheduling.admission scheduling.scheduler",
    "06 preemption": "scheduling.preemption scheduling.transfer_cost kvcache.swap",
    "07 kernel": "kernels.cache_write kernels.block_copy kernels.paged_decode_v0",
    "08 fast kernel": "kernels.paged_decode_v1 kernels.paged_decode_v2 kernels.paged_prefill",
    "09 engine": "sampling.sampler sampling.stopping sampling.detokenizer kvcache.prefix_cache"
    " engine",
    "10 evaluation": "sim.arrivals sim.metrics sim.admission_study",
    "11 distributed": "executor.plan_broadcast models.parallel_layers",
}
ALL_PARTS = {f"minipaged.{name}" for names in PARTS.values() for name in names.split()}
# Parts that are not written yet. Whoever writes one takes it from this list.
LATER = {f"minipaged.{name}" for name in PARTS["11 distributed"].split()}

TORCH_FREE = ("minipaged.kvcache", "minipaged.scheduling")
TORCH_ALLOWED = {"minipaged.kvcache.pool", "minipaged.kvcache.block_mover"}
NEEDS_TORCH = {"torch", "transformers", "triton", "safetensors.torch"}


# --------------------------------------------------------------------------- reading imports
@dataclass(frozen=True)
class Import:
    name: str
    """The module imported, absolute; for `from m import x` with a module x: m.x."""
    line: int
    local: bool
    """Does it run only when a function is called?"""


class Source:
    """One module: what it imports at run time."""

    def __init__(self, name: str, text: str, package: bool = False) -> None:
        self.name = name
        self.tree = ast.parse(text)
        self.package = package

    def imports(self, known: set[str]) -> list[Import]:
        return list(self._walk(self.tree.body, False, known))

    def _walk(self, body: list[ast.stmt], local: bool, known: set[str]) -> Iterator[Import]:
        for node in body:
            yield from self._visit(node, local, known)

    def _visit(self, node: ast.AST, local: bool, known: set[str]) -> Iterator[Import]:
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            yield from self._walk(node.orelse, local, known)
            return
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, local) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = self._absolute(node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                name = inner if inner in known | NEEDS_TORCH else base
                yield Import(name, node.lineno, local)
        elif isinstance(node, ast.Call) and _called(node).endswith(("import_module", "__import__")):
            given = node.args[0] if node.args else None
            if isinstance(given, ast.Constant):
                yield Import(str(given.value), node.lineno, local)
        inside = local or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, inside, known)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        base = parts[: len(parts) - node.level + self.package]
        return ".".join([*base, *([node.module] if node.module else [])])


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def read_package() -> dict[str, Source]:
    sources = {}
    folder = ROOT / "minipaged"
    # The kernels are a link: they are read under the name that they are imported by.
    files = [*folder.rglob("*.py"), *(folder / "kernels").rglob("*.py")]
    for file in files:
        parts = list(file.relative_to(ROOT).with_suffix("").parts)
        package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if package else parts)
        sources[name] = Source(name, file.read_text(encoding="utf-8"), package)
    return sources


PACKAGE = read_package()


# --------------------------------------------------------------------------- the rules
def unit(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def wrong_direction(sources: dict[str, Source]) -> list[str]:
    """Imports that go up or sideways."""
    found = []
    for source in sources.values():
        here = unit(source.name)
        for imported in source.imports(set(sources)):
            there = unit(imported.name)
            if not imported.name.startswith("minipaged.") or not {here, there} <= set(LAYER_OF):
                continue
            (low, mine), (high, theirs) = LAYER_OF[here], LAYER_OF[there]
            if mine != theirs and high >= low:
                found.append(f"{source.name}:{imported.line} imports {imported.name}")
    return found


def cycles(sources: dict[str, Source]) -> list[str]:
    """Modules that import each other while they are being loaded."""
    graph = {
        name: sorted({i.name for i in source.imports(set(sources)) if not i.local} & set(sources))
        for name, source in sources.items()
    }
    found: list[str] = []
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name not in done:
            for other in graph[name]:
                walk(other, [*path, name])
            done.add(name)

    for name in graph:
        walk(name, [])
    return found


def torch_reached_from(name: str, sources: dict[str, Source]) -> str:
    """The way from a module to torch, or ''. Its own local imports count; those of the modules
    that it imports do not, for importing them does not run these."""
    seen: set[str] = set()

    def walk(module: str, local_too: bool) -> str:
        if module in seen or module not in sources:
            return ""
        seen.add(module)
        imports = [i for i in sources[module].imports(set(sources)) if local_too or not i.local]
        for imported in imports:
            first = imported.name.split(".")[0]
            if {imported.name, first} & NEEDS_TORCH:
                return f"{module}:{imported.line} imports {imported.name}"
            # Importing a.b.c runs a and a.b first.
            parts = imported.name.split(".")
            for end in range(1, len(parts) + 1):
                if way := walk(".".join(parts[:end]), False):
                    return f"{module}:{imported.line} -> {way}"
        return ""

    return walk(name, True)


def parts_that_import_parts(sources: dict[str, Source]) -> list[str]:
    return [
        f"{source.name}:{imported.line} imports the part {imported.name}"
        for source in sources.values()
        if source.name in ALL_PARTS
        for imported in source.imports(set(sources) | ALL_PARTS)
        if imported.name in ALL_PARTS - {source.name}
    ]


def classes_of_parts(sources: dict[str, Source]) -> dict[str, str]:
    """Class -> the part module that defines it."""
    return {
        node.name: source.name
        for source in sources.values()
        if source.name in ALL_PARTS
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
    }


def parts_constructed_by_name(sources: dict[str, Source]) -> list[str]:
    """Calls such as `BlockTable(...)` in another part; `self.parts.BlockTable(...)` is a factory
    that the part was given."""
    homes = classes_of_parts(sources)
    return [
        f"{source.name}:{node.lineno} constructs {node.func.id} of {homes[node.func.id]}"
        for source in sources.values()
        if source.name in ALL_PARTS
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and homes.get(node.func.id, source.name) != source.name
    ]


def type_tests_on_parts(engine: Source, classes: set[str]) -> list[str]:
    """`isinstance(x, Part)`, `issubclass`, and comparisons of `type(x)`."""
    found = []
    for node in ast.walk(engine.tree):
        tested: list[ast.expr] = []
        if isinstance(node, ast.Call) and _called(node) in ("isinstance", "issubclass"):
            tested = node.args[1:]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            tested = [node.left, *node.comparators]
        names = {
            inner.id if isinstance(inner, ast.Name) else inner.attr
            for test in tested
            for inner in ast.walk(test)
            if isinstance(inner, ast.Name | ast.Attribute)
        }
        found += [f"{engine.name}:{node.lineno} tests for {name}" for name in names & classes]
    return found


def protocols(sources: dict[str, Source]) -> set[str]:
    return {
        node.name
        for node in sources["minipaged.contracts"].tree.body
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    }


# --------------------------------------------------------------------------- on our code
def test_every_module_has_its_place_in_the_layers():
    units = {unit(name) for name in PACKAGE} - {"", "kernels"}
    assert units <= set(LAYER_OF), "new modules: give them their place in LAYERS"


def test_every_part_is_where_its_stage_says():
    assert ALL_PARTS - set(PACKAGE) == LATER


def test_imports_run_one_way():
    assert wrong_direction(PACKAGE) == []


def test_no_two_modules_import_each_other():
    assert cycles(PACKAGE) == []


@pytest.mark.parametrize(
    "module",
    sorted(n for n in PACKAGE if n.startswith(TORCH_FREE) and n not in TORCH_ALLOWED),
)
def test_block_management_and_scheduling_never_reach_torch(module):
    assert torch_reached_from(module, PACKAGE) == ""


def test_no_part_imports_another_part():
    assert parts_that_import_parts(PACKAGE) == []


def test_no_part_constructs_another_by_name():
    assert parts_constructed_by_name(PACKAGE) == []


def test_the_engine_never_asks_what_a_part_is():
    classes = set(classes_of_parts(PACKAGE)) | protocols(PACKAGE)
    assert {"BlockAllocator", "KVManager"} <= classes
    assert type_tests_on_parts(PACKAGE["minipaged.engine"], classes) == []


def test_kernels_know_nothing_of_minipaged():
    kernels = [source for name, source in PACKAGE.items() if unit(name) == "kernels"]
    assert kernels
    known = set(PACKAGE)
    assert [
        f"{source.name}:{imported.line} imports {imported.name}"
        for source in kernels
        for imported in source.imports(known)
        if imported.name.split(".")[0] == "minipaged"
        and not imported.name.startswith("minipaged.kernels.")
    ] == []


def test_the_kernels_folder_is_no_package_of_its_own():
    # transformers looks for a package named `kernels` and would import this one.
    assert not (ROOT / "kernels" / "__init__.py").exists()


# --------------------------------------------------------------------------- the rules bite
def package(**texts: str) -> dict[str, Source]:
    """A made-up package: keys are module names with __ for the dot."""
    names = {key: "minipaged." + key.replace("__", ".") for key in texts}
    return {names[key]: Source(names[key], text) for key, text in texts.items()}


@pytest.mark.parametrize(
    ("here", "text"),
    [
        ("kvcache__manager", "from minipaged.engine import Engine"),
        ("kvcache__manager", "import minipaged.scheduling.scheduler"),
        ("kvcache__manager", "from minipaged.sampling import sampler"),
        ("scheduling__scheduler", "def f():\n    from minipaged.llm import LLM"),
        ("models__loader", "from ..executor import torch"),
        ("engine", "import importlib\ndef f():\n    importlib.import_module('minipaged.cli')"),
        ("sequence", "class A:\n    def f(self):\n        import minipaged.contracts"),
        ("viz__state", "if True:\n    from minipaged.kvcache.manager import PagedKVManager"),
        (
            "contracts",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\n"
            "else:\n    import minipaged.engine",
        ),
    ],
)
def test_an_import_that_goes_up_or_sideways_is_caught(here, text):
    assert len(wrong_direction(package(**{here: text}))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "from minipaged.errors import OutOfBlocks",
        "from . import block_table",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import minipaged.engine",
    ],
)
def test_an_import_that_goes_down_is_not(text):
    assert wrong_direction(package(kvcache__manager=text)) == []


def test_a_cycle_is_caught():
    made = package(
        kvcache__a="from minipaged.kvcache.b import x", kvcache__b="import minipaged.kvcache.a"
    )
    assert cycles(made) == ["minipaged.kvcache.a -> minipaged.kvcache.b -> minipaged.kvcache.a"]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ("", "import torch"),
        ("", "def f():\n    from torch import Tensor"),
        ("", "from safetensors.torch import load_file"),
        ("import torch.nn.functional as F", "from minipaged.kvcache import pool"),
    ],
)
def test_a_way_to_torch_is_caught(other, text):
    made = package(kvcache__swap=text, kvcache__pool=other)
    assert "torch" in torch_reached_from("minipaged.kvcache.swap", made)


def test_a_part_that_imports_a_part_is_caught():
    text = "def clone():\n    from minipaged.kvcache.block_table import BlockTable"
    assert len(parts_that_import_parts(package(kvcache__copy_on_write=text))) == 1
    text = "from minipaged.kvcache import block_table"
    assert len(parts_that_import_parts(package(scheduling__scheduler=text))) == 1


def test_a_part_that_constructs_a_part_is_caught():
    made = package(
        kvcache__block_table="class BlockTable:\n    def clone(self): return BlockTable()",
        kvcache__copy_on_write="def fork(table): return BlockTable(table)",
        kvcache__swap="def move(parts): return parts.BlockTable()",
    )
    assert parts_constructed_by_name(made) == [
        "minipaged.kvcache.copy_on_write:1 constructs BlockTable of minipaged.kvcache.block_table"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(kv, PagedKVManager)",
        "isinstance(kv, (int, manager.PagedKVManager))",
        "isinstance(kv, int | PagedKVManager)",
        "type(kv) is PagedKVManager",
    ],
)
def test_an_engine_that_asks_what_a_part_is_is_caught(text):
    assert len(type_tests_on_parts(Source("minipaged.engine", text), {"PagedKVManager"})) == 1


# --------------------------------------------------------------------------- and in earnest
def test_importing_them_leaves_torch_alone():
    modules = [n for n in PACKAGE if n.startswith(TORCH_FREE) and n not in TORCH_ALLOWED]
    modules += ["minipaged", "minipaged.contracts", "minipaged.parts", "minipaged.viz.svg"]
    code = (
        f"import importlib, sys\n[importlib.import_module(name) for name in {modules}]\n"
        "assert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
