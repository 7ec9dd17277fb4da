"""The contract of a stage and of a strategy, and how they are found: in two folders, and strategies in packages too.

A stage works on whole columns and explains itself by *drops*: an ordered list of (reason, mask of nodes that this
reason drops). A node is kept exactly when no mask holds it; its reason is the first that does. So counting reasons
over ten thousand nodes costs microseconds, and the figures of one node are computed only when somebody asks.

One file is the whole change: the folder is walked, the file's name is the stage's name, and its `order` is its number
in the pipeline. A file without docstring, reasons or examples stops the start, by name. So does a strategy of an
installed package (entry points of the group `fleet.strategies`) that cannot be loaded or takes another's name; and
what it orders is checked every time, because a strategy can never change who fits.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Final, ParamSpec, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.model.cluster_config import parse_cluster_value
from fleet.model.config_value import ConfigError
from fleet.model.errors import BrokenPromise, InvalidRequest, StrategyUnavailable
from fleet.placement import stages as stages_folder
from fleet.placement import strategies as strategies_folder
from fleet.placement.ask import Ask
from fleet.placement.columns import Ints, Mask
from fleet.placement.frame import Frame


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a stage drops a node. `code` is public; `meaning` completes "dropped because …"."""

    code: str
    meaning: str


P = ParamSpec("P")
T = TypeVar("T")
Drops: TypeAlias = Sequence[tuple[Reason, Mask]]
Figures: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """One case that documents a stage and tests it. `reason` None: the node is kept.

    `node` and `request` are what differs from a quiet node and a small request (`tests/documents.py`); `others` are
    further nodes.
    """

    text: str
    reason: Reason | None = None
    request: Mapping[str, Any] = field(default_factory=dict)
    node: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    instances: Sequence[Mapping[str, Any]] = ()
    others: Sequence[Mapping[str, Any]] = ()


def _no_flags(ask: Ask, frame: Frame) -> Mapping[str, Mask]:
    del ask, frame
    return {}


def _never(ask: Ask, frame: Frame) -> bool:
    del ask, frame
    return False


def _no_warnings(ask: Ask, frame: Frame) -> Sequence[str]:
    del ask, frame
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A stage that drops nodes. `drops` None: the request does not ask this stage's question, so it is left out.

    `capacity` marks the stages whose refusal means "no room now". `sheds_load`: it says whether a node is a good idea
    right now, and never moves a placement out of the group that an affinity scorer chose. `spares_resize_home`: the
    node a resize starts from is exempt. `refusal` is the code of a decision that this stage emptied. `flags` marks kept
    nodes that deserve a remark. `may_yield`: the stage is a wish for this request, so where it would leave nobody it
    drops nobody. `warnings` are sentences for whoever asks, whatever the answer.
    """

    order: int
    reasons: tuple[Reason, ...]
    examples: tuple[Example, ...]
    drops: Callable[[Ask, Frame], Drops | None]
    figures: Callable[[Ask, Frame, int], Figures]
    flags: Callable[[Ask, Frame], Mapping[str, Mask]] = _no_flags
    may_yield: Callable[[Ask, Frame], bool] = _never
    warnings: Callable[[Ask, Frame], Sequence[str]] = _no_warnings
    capacity: bool = False
    sheds_load: bool = False
    spares_resize_home: bool = False
    refusal: str = "out_of_capacity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A stage that keeps only the nodes with the highest score; `score` None: nothing was asked for."""

    order: int
    reasons: tuple[Reason, ...]
    examples: tuple[Example, ...]
    score: Callable[[Ask, Frame], Ints | None]
    figures: Callable[[Ask, Frame, int], Figures]


@dataclass(frozen=True, slots=True)
class NamedStage:
    """A stage with its name and its docstring."""

    name: str
    stage: Filter | Scorer
    text: str


@dataclass(frozen=True, slots=True)
class Ordering:
    """A strategy's answer: the candidates best first and the weight of each.

    `note` says in a few words why the node at a place of the ranking stands there; `figures` explains a node by index.
    """

    ranked: NDArray[np.intp]
    weights: NDArray[np.float64]
    note: Callable[[int], str]
    figures: Callable[[int], Figures]


class Order(Protocol):
    """Orders candidates. It must return each of them once: a strategy can never change who fits."""

    def __call__(self, ask: Ask, frame: Frame, candidates: NDArray[np.intp], seed: int) -> Ordering:
        """Return `candidates` (indexes, ascending) best first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to order the survivors.

    `axis` names the figure it is monotone on, lowest first unless `highest_first`, for the docs and the tests.
    """

    order: Order
    axis: str
    highest_first: bool = False


@dataclass(frozen=True, slots=True)
class NamedStrategy:
    """A strategy with its name and its docstring. `origin` is the package that brought it; empty: the product."""

    name: str
    strategy: Strategy
    text: str
    origin: str = ""

    def order(self, ask: Ask, frame: Frame, candidates: NDArray[np.intp], seed: int) -> Ordering:
        """Return the candidates best first.

        Raises:
            BrokenPromise: the strategy failed, or it did not return each candidate once.
        """
        candidates.flags.writeable = False
        ordering = self._guarded(self.strategy.order)(ask, frame, candidates, seed)
        problem = ordering_problem(ordering, candidates, len(frame))
        if problem:
            raise BrokenPromise(f"{self.told}: {problem}")
        note, figures = self._guarded(ordering.note), self._guarded(ordering.figures)
        return Ordering(ordering.ranked, ordering.weights, note, figures)

    def _guarded(self, call: Callable[P, T]) -> Callable[P, T]:
        """Return the same call, whose failure is told as the strategy's."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return call(*args, **kwargs)
            except Exception as error:
                raise BrokenPromise(f"{self.told}: it failed with {error!r}") from error

        return guarded

    @property
    def told(self) -> str:
        """The strategy and whose it is, for an error."""
        return f"strategy {self.name}" + (f" of {self.origin}" if self.origin else "")


def ordering_problem(ordering: object, candidates: NDArray[np.intp], nodes: int) -> str:
    """Return what is wrong with a strategy's answer; empty when it ranks each candidate once and nobody else."""
    if not isinstance(ordering, Ordering):
        return f"it returned {type(ordering).__name__}, not an Ordering"
    ranked, weights, wanted = np.asarray(ordering.ranked), np.asarray(ordering.weights), len(candidates)
    if ranked.dtype.kind != "i" or ranked.ndim != 1:
        return "what it ranked is not a column of node indexes"
    if weights.shape != ranked.shape or weights.dtype.kind != "f" or not np.isfinite(weights).all():
        return "its weights are not one finite number for each ranked node"
    if len(ranked) and not 0 <= int(ranked.min()) <= int(ranked.max()) < nodes:
        return f"it ranked a node that does not exist: indexes end at {nodes - 1}"
    seen = np.zeros(nodes, dtype=np.bool_)
    seen[ranked] = True
    found = int(np.count_nonzero(seen))
    if found != len(ranked):
        return f"it ranked {len(ranked) - found} nodes more than once"
    fitting = int(np.count_nonzero(seen[candidates]))
    if (fitting, found) != (wanted, wanted):
        return f"of {wanted} nodes that fit it ranked {fitting}, and {found - fitting} that do not fit"
    return ""


def stage_problems(module: ModuleType, name: str) -> list[str]:
    """Return what a stage file lacks."""
    stage = getattr(module, "STAGE", None)
    if not isinstance(stage, Filter | Scorer):
        return [f"stage {name} has no STAGE"]
    found = [] if (module.__doc__ or "").startswith(f"{name}:") else [f"stage {name} has no docstring '{name}: …'"]
    if not stage.reasons:
        found.append(f"stage {name} declares no reasons")
    if not stage.examples:
        found.append(f"stage {name} has no examples")
    shown = {example.reason for example in stage.examples}
    return found + [f"stage {name} has no example of reason {one.code}" for one in stage.reasons if one not in shown]


def read_stages(modules: Iterable[tuple[str, ModuleType]]) -> tuple[NamedStage, ...]:
    """Return the stages of modules in pipeline order.

    Raises:
        BrokenPromise: a file lacks something, or two files claim one number.
    """
    found: dict[int, NamedStage] = {}
    problems: list[str] = []
    for name, module in modules:
        problems += stage_problems(module, name)
        stage = getattr(module, "STAGE", None)
        if not isinstance(stage, Filter | Scorer):
            continue
        if stage.order in found:
            problems.append(f"stages {found[stage.order].name} and {name} both have order {stage.order}")
        found[stage.order] = NamedStage(name, stage, (module.__doc__ or "").strip())
    if problems:
        raise BrokenPromise("; ".join(problems))
    return tuple(found[order] for order in sorted(found))


def _modules_of(folder: ModuleType) -> list[tuple[str, ModuleType]]:
    names = sorted(item.name for item in pkgutil.iter_modules(folder.__path__))
    return [(name, importlib.import_module(f"{folder.__name__}.{name}")) for name in names]


@cache
def all_stages() -> tuple[NamedStage, ...]:
    """Return the stages of the folder, in pipeline order; found once a process."""
    return read_stages(_modules_of(stages_folder))


STRATEGY_GROUP: Final = "fleet.strategies"
"""The entry points by which an installed package brings a strategy: its name = a module with `STRATEGY`, or that."""


@cache
def own_strategies() -> Mapping[str, NamedStrategy]:
    """Return the strategies of the folder by their public names; found once a process."""
    found: dict[str, NamedStrategy] = {}
    for file_name, module in _modules_of(strategies_folder):
        name, strategy = file_name.replace("_", "-"), getattr(module, "STRATEGY", None)
        if not isinstance(strategy, Strategy) or not (module.__doc__ or "").startswith(f"{name}:"):
            raise BrokenPromise(f"strategy {name} has no STRATEGY or no docstring '{name}: …'")
        found[name] = NamedStrategy(name, strategy, (module.__doc__ or "").strip())
    return found


@cache
def all_strategies() -> Mapping[str, NamedStrategy]:
    """Return every strategy by its public name: the product's and those of installed packages."""
    own = own_strategies()
    return {**own, **read_strategies(entry_points(group=STRATEGY_GROUP), own)}


def read_strategies(found: Iterable[EntryPoint], taken: Mapping[str, NamedStrategy]) -> dict[str, NamedStrategy]:
    """Return the strategies that packages bring.

    Raises:
        BrokenPromise: with every one that cannot be loaded, is none, or has a name that is taken or no name at all.
    """
    strategies: dict[str, NamedStrategy] = {}
    problems: list[str] = []
    for point in sorted(found, key=lambda point: (point.name, _origin(point))):
        try:
            strategies[point.name] = _read(point, strategies.get(point.name) or taken.get(point.name))
        except ConfigError as refused:
            problems.append(f"{_told(point)}: {refused}")
        except Exception as error:  # noqa: BLE001 - whatever a foreign package does when it is imported
            problems.append(f"{_told(point)}: {error}")
    if problems:
        raise BrokenPromise("; ".join([*problems, "repair or uninstall what brings it"]))
    return strategies


def _read(point: EntryPoint, other: NamedStrategy | None) -> NamedStrategy:
    if other is not None:
        raise ValueError(f"the name is taken by {other.origin or 'the product'}")
    parse_cluster_value("PLACEMENT_STRATEGY", point.name)
    loaded = point.load()
    strategy = loaded if isinstance(loaded, Strategy) else getattr(loaded, "STRATEGY", None)
    if not isinstance(strategy, Strategy):
        raise TypeError(f"{point.value} is no Strategy and no module with one named STRATEGY")
    text = importlib.import_module(point.module).__doc__ or ""
    return NamedStrategy(point.name, strategy, text.strip(), _origin(point))


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _told(point: EntryPoint) -> str:
    return f"strategy {point.name!r} of {_origin(point)} ({point.value})"


def strategy_named(name: str, field_name: str = "strategy") -> NamedStrategy:
    """Return a strategy.

    Raises:
        InvalidRequest: there is none of that name.
    """
    known = all_strategies()
    if name not in known:
        message = f"no strategy is called {name[:63]!r}; there is: {', '.join(sorted(known))}"
        raise InvalidRequest(f"{field_name}: {message}", errors=[{"field": field_name, "message": message}])
    return known[name]


def strategy_problems(body: object, told: Iterable[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """Return what is wrong with the strategy that a body names, when that was not `told` already.

    A body's form is judged without knowing who is installed; whoever answers what is wrong with it adds this.
    """
    name = body.get("strategy") if isinstance(body, Mapping) else None
    if not isinstance(name, str) or not name or any(problem["field"] == "strategy" for problem in told):
        return ()
    try:
        strategy_named(name)
    except InvalidRequest as refused:
        found: Sequence[Mapping[str, str]] = refused.extra["errors"]
        return found
    return ()


def cluster_strategy(name: str) -> NamedStrategy:
    """Return the strategy that the cluster's configuration names.

    Raises:
        StrategyUnavailable: it is not installed here. It was in the process that set the key.
    """
    known = all_strategies()
    if name not in known:
        raise StrategyUnavailable(
            f"the strategy {name[:63]!r} of PLACEMENT_STRATEGY is not installed in the process that was asked; "
            f"there is: {', '.join(sorted(known))}. An operator installs what brings it, or sets the key to one of "
            "these; until then a request that names its own `strategy` is placed",
            strategy=name,
            installed=sorted(known),
        )
    return known[name]
