"""Register commands, print their results and errors, and open the stores that they read."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

from tuner.cli.help import Commands, Listing, option_name
from tuner.errors import BadInput, TunerError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tuner.store.remote import StoredResults
    from tuner.store.results import ResultStore

P = ParamSpec("P")
R = TypeVar("R")

_REFUSED = (errno.EACCES, errno.ENAMETOOLONG)  # pathlib raises these even to ask what is there

app = typer.Typer(
    name="tuner",
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "token_normalize_func": option_name},
    rich_markup_mode=None,  # importing rich would double the time that --help takes
    pretty_exceptions_enable=False,
)


@app.callback()
def tuner(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the versions, the engines and the store, and exit.",
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Tune, check, store and ship launch configurations for LLM engines' Triton kernels."""
    if version:
        typer.echo("\n".join(_versions()))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _versions() -> Iterator[str]:
    """Name this program's version, the engines here with their Tritons, and the store."""
    from tuner.engines.engine import engine_names, engine_triton, find_engine
    from tuner.store.connect import database_url, place_of

    yield f"tuner {metadata.version('engine-tuner')}"
    for name in engine_names():
        try:
            engine = find_engine(name)
        except TunerError:
            yield f"{name}: none here"
        else:
            yield f"{name} {engine.version}, Triton {engine_triton(engine) or 'unknown'}"
    try:
        yield f"store: {place_of(database_url(os.environ))}"
    except TunerError as error:
        yield f"store: {error}"


def group(name: str, text: str, *, of: typer.Typer = app, lists: bool = False) -> typer.Typer:
    """Add a group of commands; `lists`: its command `list` may be left out."""
    cls = Listing if lists else TyperGroup
    made = typer.Typer(name=name, help=text, cls=cls, no_args_is_help=not lists)
    of.add_typer(made)
    return made


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Register a top-level command; see `guarded`."""
    return app.command()(guarded(function))


def command_of(of: typer.Typer, name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a command of a group; see `guarded`."""
    return lambda function: of.command(name)(guarded(function))


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that a TunerError, or a path that the system refuses, prints one line and
    sets the exit code.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TunerError as error:
            say(f"tuner: error: {error}")
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            say("tuner: interrupted; run the same command again to go on")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # `tuner list models | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as error:
            if error.errno not in _REFUSED or not error.filename:
                raise
            say(f"tuner: error: {error.filename} cannot be used: {error.strerror}")
            raise typer.Exit(BadInput.exit_code) from None

    return wrapper


def refuse_foreign(package: str) -> None:
    """Raise BadInput if `import {package}` would not find the package installed with this module.

    The wheel installs `workers` and `api` as top-level packages, and others may use these names.
    """
    found, ours = find_spec(package), Path(__file__).resolve().parents[2] / package
    places = [Path(one).resolve() for one in (found and found.submodule_search_locations) or []]
    if places != [ours]:
        place = places[0] if places else found and found.origin
        raise BadInput(
            f"the package {package!r} of engine-tuner should be in {ours}, but Python finds "
            f"{place or 'none'}: remove that folder from the path, or install in an empty "
            "environment"
        )


def open_store() -> AbstractContextManager[ResultStore]:
    """Open this machine's store of measurements and choices."""
    from tuner.store.connect import database_url
    from tuner.store.results import ResultStore

    return ResultStore.open(database_url(os.environ))


@contextmanager
def open_results(server: str | None) -> Iterator[StoredResults]:
    """Open the results of this machine's store, or of a server."""
    if server is None:
        with open_store() as store:
            yield store
        return
    from tuner.jobs.client import RemoteQueue, api_key
    from tuner.store.remote import RemoteResults

    yield RemoteResults(RemoteQueue(server, api_key(os.environ)))


def say(text: str) -> None:
    """Print a message to stderr: folded for a terminal, and whole for a pipe."""
    if sys.stderr.isatty():
        from tuner.render import folded

        text = folded(text)
    typer.echo(text, err=True)


def show(
    as_json: bool, value: Callable[[], object], text: Callable[[], str], nothing: str = ""
) -> None:
    """Print a result, as JSON or as text. Of an empty list, say instead of the text that there is
    `nothing`, to stderr.
    """
    if as_json:
        print_json(value())
    elif nothing:
        say(nothing)
    else:
        lines = text()
        typer.echo(lines, nl=not lines.endswith("\n"))


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))
