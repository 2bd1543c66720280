"""Modules of the package that are loaded from another text than their file's."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType

from minipaged.course.source_module import code_of


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds these modules, before their files are looked for."""

    def __init__(self, sources: Mapping[str, tuple[str, str]]) -> None:
        """
        Args:
            sources: module name -> (path, text). Tracebacks name the path.
        """
        self.sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.sources:
            return None
        origin, _ = self.sources[fullname]
        return importlib.util.spec_from_loader(fullname, self, origin=origin, is_package=False)

    def get_source(self, fullname: str) -> str:
        return self.sources[fullname][1]

    def get_code(self, fullname: str) -> CodeType:
        return code_of(*self.sources[fullname])
