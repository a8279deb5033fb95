"""Define every error that this package raises on purpose.

TunerError                      the root: catch this to catch them all
├── BadInput                    the caller can fix it; exit code 2
│   ├── OptionsRefused
│   ├── UnknownKey
│   ├── LastAdmin
│   ├── UnknownDevice
│   ├── UnknownModel
│   ├── UnknownEngine
│   ├── UnsupportedFamily
│   ├── BadProblem
│   │   ├── IndivisibleShape
│   │   ├── PaddedShape
│   │   ├── NoSuchLayer
│   │   └── SeveralModels
│   ├── MalformedCheckpoint
│   │   ├── MalformedField
│   │   └── LacksLayers
│   ├── MalformedConfigFile
│   ├── MalformedRecording
│   ├── MalformedCluster
│   ├── MalformedWatchList
│   ├── MalformedWorkload
│   ├── MalformedCapture
│   ├── MalformedBenchmark
│   ├── UnreadableLog
│   ├── UnsupportedKernel
│   ├── UnwritableOutput
│   ├── UnusableStore
│   │   ├── StoreUnreachable
│   │   ├── StoreFull
│   │   ├── StoreReadOnly
│   │   ├── StoreReplaced
│   │   └── WrongSchema
│   │       └── NewerSchema
│   ├── UnknownWorker
│   ├── UnknownJob
│   ├── NotRetriable
│   │   └── EqualJobUnfinished
│   ├── JobUnfinished
│   └── IdempotencyConflict
└── WorkFailed                  the input was good, the work was not done; exit code 1
    ├── NothingFits
    ├── EngineNotFetched
    ├── CompilerUnavailable
    ├── MeasurerUnavailable
    ├── MeasurerFailed
    ├── GpuInUse
    ├── NotEnoughMemory
    ├── ExportRefused
    ├── BundleRefused
    ├── ServerUnavailable
    ├── IdempotencyKeyInUse
    ├── QueueFull
    ├── RunAlreadyActive
    └── StaleLease

An error's message defaults to the first line of its class's docstring. `cli`, `api` and `page` end
the message with what to do next, in the words of the command line, the API and the web pages.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


class TunerError(Exception):
    """The tuner failed."""

    exit_code = 1

    def __init__(
        self, message: str | None = None, *, cli: str = "", api: str = "", page: str | None = None
    ) -> None:
        """Take the message and its next steps. Without `page`, pages say the API's next step."""
        self.message = message or (type(self).__doc__ or "").partition("\n")[0]
        self.cli, self.api, self.page = cli, api, api if page is None else page
        super().__init__(self.message + cli)

    def in_api_words(self) -> str:
        """Return the message with the API's next step; `str(error)` has the command line's."""
        return self.message + self.api

    def in_page_words(self) -> str:
        """Return the message with the next step for a user of the web pages."""
        return self.message + self.page

    def add(self, *, cli: str, api: str, page: str | None = None) -> None:
        """Add to the next step, in all sets of words."""
        self.cli, self.api = self.cli + cli, self.api + api
        self.page += api if page is None else page
        self.args = (self.message + self.cli,)


class BadInput(TunerError):
    """The input is not valid."""

    exit_code = 2
    field = ""  # of a request, if the mistake is known to be in that field

    @property
    def by_field(self) -> Mapping[str, BadInput]:
        """Return the mistakes whose fields are known, by their names."""
        return {self.field: self} if self.field else {}


class OptionsRefused(BadInput):
    """Options do not apply to what is asked for."""

    def __init__(self, reasons: Mapping[str, str], flags: Mapping[str, str]) -> None:
        """Take by the name of a field: the kind of request that has the field, and its flag."""
        said = {name: f"{name} is {why}: leave it out" for name, why in reasons.items()}
        self._by_field = {name: BadInput(text) for name, text in said.items()}
        in_flags = (f"{flags[name]} is {why}: leave it out" for name, why in reasons.items())
        super().__init__("; ".join(in_flags))

    def in_api_words(self) -> str:
        return "; ".join(error.message for error in self._by_field.values())

    def in_page_words(self) -> str:
        return self.in_api_words()

    @property
    def by_field(self) -> Mapping[str, BadInput]:
        return self._by_field


class UnknownKey(BadInput):
    """No valid key has that name."""


class LastAdmin(BadInput):
    """Nobody could administer the service without this key."""


class UnknownDevice(BadInput):
    """The device table has no such GPU."""


class UnknownModel(BadInput):
    """No preset, folder, file or warning line describes such a model."""


class UnknownEngine(BadInput):
    """No such engine, or no such version of it, is on this machine."""


class UnsupportedFamily(BadInput):
    """The engine has no kernels of that family that can be tuned."""


class BadProblem(BadInput):
    """No engine can run a problem with these values."""


class IndivisibleShape(BadProblem):
    """The tensor- or expert-parallel size does not divide the model."""


class PaddedShape(BadProblem):
    """The engine runs a rank's weights in another form, which is not tuned, or refuses them."""


class NoSuchLayer(BadProblem):
    """No known model has a layer that a config file of this name is for."""


class SeveralModels(BadProblem):
    """The name of a config file fits several models.

    `problems` has the spec of each problem that the file may be for, with the models that have it.
    """

    def __init__(
        self, message: str, problems: Mapping[str, str], *, cli: str = "", api: str = ""
    ) -> None:
        super().__init__(message, cli=cli, api=api)
        self.problems = problems


class MalformedCheckpoint(BadInput):
    """A model's config.json cannot be read."""


class MalformedField(MalformedCheckpoint):
    """A field of a model's config.json has a value that no model can have."""


class LacksLayers(MalformedCheckpoint):
    """A model has no layers of the family that was asked for."""


class MalformedConfigFile(BadInput):
    """An engine config file does not hold batch sizes and launch configurations."""


class MalformedRecording(BadInput):
    """A recording of timings cannot be read."""


class MalformedCluster(BadInput):
    """A cluster.toml does not describe nodes that an engine can be started on."""


class MalformedWatchList(BadInput):
    """A watch list does not say which models to keep tuned on which devices."""


class MalformedWorkload(BadInput):
    """A workload does not say which batches to tune attention for."""


class MalformedCapture(BadInput):
    """A folder does not hold the files that were captured from a node."""


class MalformedBenchmark(BadInput):
    """A file does not hold benchmark results."""


class UnreadableLog(BadInput):
    """A server's log cannot be read."""


class UnsupportedKernel(BadInput):
    """The engine's kernel has a parameter that this version does not know how to bind."""


class UnwritableOutput(BadInput):
    """The output folder cannot be written."""


class UnusableStore(BadInput):
    """The store cannot be opened for writing by this version."""


class StoreUnreachable(UnusableStore):
    """The store does not answer, or not in time. It may answer again soon."""

    exit_code = 1  # the request is not at fault


class StoreFull(UnusableStore):
    """The disk of the store is full."""


class StoreReadOnly(UnusableStore):
    """The store can be read but not written."""


class StoreReplaced(UnusableStore):
    """A file of the store was deleted or replaced while it was open."""


class WrongSchema(UnusableStore):
    """This version does not know the store's schema."""


class NewerSchema(WrongSchema):
    """A newer version has upgraded the store: this one must be upgraded too."""


class UnknownWorker(BadInput):
    """No living worker has that name."""


class UnknownJob(BadInput):
    """There is no job with that id."""


class NotRetriable(BadInput):
    """Only a job that is dead, failed or cancelled can be queued again."""


class EqualJobUnfinished(NotRetriable):
    """Another job for the same work is unfinished."""


class JobUnfinished(BadInput):
    """Only a job that has ended can be deleted."""


class IdempotencyConflict(BadInput):
    """The idempotency key was used before, with another body."""


class WorkFailed(TunerError):
    """The work could not be finished."""


class NothingFits(WorkFailed):
    """No configuration compiles within the device's limits."""


class EngineNotFetched(WorkFailed):
    """An engine, or the Triton that it pins, could not be fetched."""


class CompilerUnavailable(WorkFailed):
    """Nothing can be compiled on this machine: triton is missing or does not start."""


class MeasurerUnavailable(WorkFailed):
    """The chosen source of times cannot be used on this machine."""


class MeasurerFailed(WorkFailed):
    """Measuring stopped and could not be resumed."""


class GpuInUse(WorkFailed):
    """Another process measures on the GPU."""


class NotEnoughMemory(WorkFailed):
    """The GPU has too little free memory for the problem's tensors."""


class ExportRefused(WorkFailed):
    """The stored winners must not be exported there."""


class BundleRefused(WorkFailed):
    """The archive is not a bundle, or was changed after it was made."""


class ServerUnavailable(WorkFailed):
    """The server does not answer, or answers in a form that this version does not know."""


class IdempotencyKeyInUse(WorkFailed):
    """Another request with this idempotency key is being worked on: try again in a moment."""


class QueueFull(WorkFailed):
    """A client has as many queued jobs as it may have."""


class RunAlreadyActive(WorkFailed):
    """Another worker is working on an equal run, which another request asked for."""


class StaleLease(WorkFailed):
    """The job was given to another worker, or has ended: nothing was written."""


# How alike two words must be: of 3 letters 2 may agree (H21, H20), and MI300X is not B300.
_NEAR = 0.62
_FEW = 8


def did_you_mean(value: str, choices: Iterable[str]) -> str:
    """Return ``"; did you mean 'X'?"`` with the choice nearest to `value`; "" if none is near.

    A choice that begins with `value` is near.
    """
    by_folded = {choice.casefold(): choice for choice in choices}
    folded = value.casefold()
    near = difflib.get_close_matches(folded, by_folded, n=1, cutoff=_NEAR)
    longer = [choice for choice in by_folded if len(folded) > 2 and choice.startswith(folded)]
    found = (near or longer[:1])[:1]
    return f"; did you mean {by_folded[found[0]]!r}?" if found else ""


def one_of(value: str, choices: Iterable[str]) -> str:
    """Return `did_you_mean`; if no choice is near, list the choices if they are few."""
    known = list(choices)
    near = did_you_mean(value, known)
    if near or not known or len(known) > _FEW:
        return near
    return f"; write {' or '.join(filter(None, [', '.join(known[:-1]), known[-1]]))}"
