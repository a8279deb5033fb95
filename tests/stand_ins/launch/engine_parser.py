"""The argument parser of an sglang or vLLM release on disk, built by the release's own code.

`engine_parser.py ENGINE ROOT WORDS...` reads a server's command line by it, and ends with 2 for an
unknown flag, a missing value or a value of another type, as the server would. Only the modules that
declare flags are the release's own. All others are answered by stand-ins, pydantic's dataclasses
and msgspec's structures by dataclasses without checks of their own.
"""

# ruff: noqa: PLC0415 - a release is imported when its stand-ins are there
from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# The modules that declare flags.
OWN = {
    "sglang": (
        "sglang.srt.arg_groups",
        "sglang.srt.environ",
        "sglang.srt.function_call.function_call_parser",
        "sglang.srt.function_call.parser_names",
        "sglang.srt.parser.reasoning_parser",
        "sglang.srt.parser.reasoning_parser_names",
        "sglang.srt.server_args",
    ),
    "vllm": (
        "vllm.config",
        "vllm.engine.arg_utils",
        "vllm.entrypoints.common.cli_args",
        "vllm.entrypoints.openai.cli_args",
        "vllm.utils.argparse_utils",
        "vllm.version",
        "vllm._version",
    ),
}
HEAVY = ("torch", "huggingface_hub", "transformers", "safetensors")


class _StandIn(ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder(MetaPathFinder, Loader):
    def __init__(self, engine: str, root: Path) -> None:
        self.engine, self.root = engine, root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] in HEAVY:
            return ModuleSpec(name, self, is_package=True)
        if name.partition(".")[0] != self.engine:
            return None
        file = self.root.joinpath(*name.split("."))
        folder = [str(file)] if file.is_dir() else None
        file = file / "__init__.py" if folder else file.with_suffix(".py")
        own = any(f"{name}.".startswith(f"{one}.") for one in OWN[self.engine])
        if own and file.is_file():
            return spec_from_file_location(name, file, submodule_search_locations=folder)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it empty."""


def _pydantic_dataclasses() -> None:
    import pydantic.dataclasses
    from pydantic.fields import FieldInfo

    def plain(given: FieldInfo) -> Any:
        if given.init is False:
            return dataclasses.field(init=False, default=None)
        if given.default_factory:
            return dataclasses.field(default_factory=given.default_factory)
        return dataclasses.field(**{} if given.is_required() else {"default": given.default})

    def dataclass(cls: type | None = None, **_: Any) -> Any:
        if cls is None:
            return dataclass
        for name, value in list(vars(cls).items()):
            if isinstance(value, FieldInfo):
                setattr(cls, name, plain(value))
        cls.__post_init__ = lambda *_: None  # type: ignore[attr-defined]
        return dataclasses.dataclass(kw_only=True)(cls)

    pydantic.dataclasses.dataclass = dataclass  # type: ignore[assignment]


class _Struct:
    def __init_subclass__(cls, *, kw_only: bool = False, **_: Any) -> None:
        for name, value in list(vars(cls).items()):
            if isinstance(value, list | dict | set) and not name.startswith("_"):
                setattr(cls, name, dataclasses.field(default_factory=value.copy))
        dataclasses.dataclass(cls, kw_only=kw_only)


def _defstruct(name: str, fields: Sequence[tuple], *, namespace: dict[str, Any], **_: Any) -> type:
    body = {"__annotations__": {field[0]: field[1] for field in fields}, **namespace}
    body |= {field[0]: field[2] for field in fields if len(field) > 2}
    return types.new_class(name, (_Struct,), {"kw_only": True}, lambda names: names.update(body))


def _msgspec() -> dict[str, ModuleType]:
    structs, whole = ModuleType("msgspec.structs"), ModuleType("msgspec")
    vars(structs).update(fields=dataclasses.fields, replace=dataclasses.replace)
    vars(whole).update(Struct=_Struct, defstruct=_defstruct, field=dataclasses.field)
    vars(whole).update(structs=structs, NODEFAULT=object(), UNSET=object(), __path__=[])
    return {"msgspec": whole, "msgspec.structs": structs}


def build_parser(engine: str, root: Path) -> argparse.ArgumentParser:
    """The parser of the release whose package lies in `root`. Once in a process."""
    sys.modules.update(_msgspec(), regex=re)
    sys.meta_path.insert(0, _Finder(engine, root))
    if engine == "sglang":
        from sglang.srt.server_args import ServerArgs

        parser = argparse.ArgumentParser("sglang.launch_server")
        ServerArgs.add_cli_args(parser)
    else:
        _pydantic_dataclasses()
        if (root / "vllm/entrypoints/common/cli_args.py").is_file():
            from vllm.entrypoints.common.cli_args import make_arg_parser
        else:
            from vllm.entrypoints.openai.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser = make_arg_parser(FlexibleArgumentParser("vllm serve"))
    for action in parser._actions:
        known = [one for one in action.choices or () if isinstance(one, str | int)]
        if len(known) < len([*(action.choices or ())]) or not known:  # from a stand-in
            action.choices = None
    return parser


if __name__ == "__main__":
    found = build_parser(sys.argv[1], Path(sys.argv[2]))
    if len(found._actions) < 100:
        sys.exit(f"{len(found._actions)} flags: the parser of {sys.argv[2]} was not found")
    found.parse_args(sys.argv[3:])
