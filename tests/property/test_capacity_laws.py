"""What holds for capacity: what is not known is none, more of it drops nobody, and GPUs that fit can be given."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.model.capacity import charged, node_limits
from fleet.model.cluster_config import ClusterConfig
from fleet.model.figures import measured_of
from fleet.model.gpu_inventory import choose
from fleet.model.request import PlacementRequest
from fleet.placement.ask import Ask
from fleet.placement.columns import limit
from fleet.placement.frame import Frame
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import Filter, all_stages
from tests.property.fleets import CREATE, GPU_ASKS, LAWS, METRICS, PLAIN, SEEDS, documents, requests

METRICS_NEEDED = (
    "is_hypervisor",
    "cpu_max_per_instance",
    "cpu_total_instance_vcpus",
    "memory_total_instance_actual",
    "memory_available",
    "disk_free_gb",
)
COUNTERS_NEEDED = ("limit_cpus", "limit_memory_mb", "limit_disk_gb", "used_cpus", "used_memory_mb", "used_disk_gb")


def keeping(request: PlacementRequest, frame: Frame) -> dict[str, set[str]]:
    """The nodes that each filter keeps, taken by itself."""
    ask, found = Ask.of(request, frame), {}
    for named in all_stages():
        drops = named.stage.drops(ask, frame) if isinstance(named.stage, Filter) else None
        if drops is not None:
            found[named.name] = {
                name for at, name in enumerate(frame.roster.names) if not any(mask[at] for _, mask in drops)
            }
    return found


def only_less(request: PlacementRequest, less: dict[str, Any], more: dict[str, Any]) -> None:
    """No stage keeps a node of `less` that it drops in `more`."""
    kept, kept_of_more = (keeping(request, Snapshot.from_json(each).frame) for each in (less, more))
    assert {name: nodes - kept_of_more[name] for name, nodes in kept.items() if nodes - kept_of_more[name]} == {}


@LAWS
@given(document=documents(), request=requests(), figure=st.sampled_from([*METRICS_NEEDED, *COUNTERS_NEEDED, "age"]))
def test_a_figure_that_goes_missing_never_makes_room(
    document: dict[str, Any], request: PlacementRequest, figure: str
) -> None:
    known = {**document, "nodes": [dict(node) for node in document["nodes"]]}
    for node in document["nodes"]:
        node["metrics"] = {name: value for name, value in node["metrics"].items() if name != figure}
        if node.get("capacity") is not None:
            node["capacity"] = {name: value for name, value in node["capacity"].items() if name != figure}
        if figure == "age":
            del node["sample_age_seconds"]

    only_less(request, document, known)


@LAWS
@given(document=documents())
def test_what_the_fleet_is_charged_is_what_each_node_is(document: dict[str, Any]) -> None:
    frame = Snapshot.from_json(document).frame
    columns = {"cpu_total_instance_vcpus": frame.charged_cpus, "memory_total_instance_actual": frame.charged_memory}
    for (name, column), used in zip(columns.items(), frame.used[:2], strict=True):
        assert column.tolist() == list(map(charged, frame.sample.column(name).tolist(), used.tolist()))


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_node_of_which_nothing_is_known_is_never_chosen(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    for node in document["nodes"]:
        node["metrics"] = {}
        if node.get("capacity") is not None:
            node["capacity"] = {}

    assert decide(request, Snapshot.from_json(document), seed).ranked == ()


def roomier(node: dict[str, Any], more: int) -> dict[str, Any]:
    """The same node with more of everything that is known of it, and all of its GPUs free."""
    grow = {"memory_available", "disk_free_gb", "cpu_max_per_instance"}
    metrics = {name: value + more if name in grow else value for name, value in node["metrics"].items()}
    found = {**node, "metrics": metrics, "gpu_count_used": 0, "mig_profiles_used": {}}
    for units in ("gpus", "mig_instances"):
        found[units] = [{**one, "bound_to": ""} for one in node.get(units, [])]
    if node["capacity"] is not None:
        found["capacity"] = {
            name: value + more if name.startswith("limit_") and value is not None else value
            for name, value in node["capacity"].items()
        }
    return found


@LAWS
@given(document=documents(), request=requests(), more=st.integers(0, 5000))
def test_more_room_and_more_free_gpus_drop_no_node_that_fitted(
    document: dict[str, Any], request: PlacementRequest, more: int
) -> None:
    # Limits that follow from a sample are not stated, and more of one of its figures may mean less of another.
    document["nodes"] = [node for node in document["nodes"] if "capacity" in node]
    document["config"].pop("ADMIT_UNSIZED_NODES", None)

    only_less(request, document, {**document, "nodes": [roomier(node, more) for node in document["nodes"]]})


@LAWS
@given(document=documents(), request=requests(), asked=st.sampled_from(GPU_ASKS))
def test_gpus_fit_exactly_where_they_can_be_given(
    document: dict[str, Any], request: PlacementRequest, asked: dict[str, Any]
) -> None:
    create = request.model_copy(update={**PLAIN, **CREATE, **asked})
    frame = Snapshot.from_json(document).frame
    ask = Ask.of(create, frame)

    kept = keeping(create, frame).get("gpu", set(frame.roster.names))

    assert kept == {
        name
        for at, name in enumerate(frame.roster.names)
        if not ask.gpus.count or choose(frame.gpus.inventory(at), ask.gpus) is not None
    }


def test_the_figures_that_these_laws_take_away_are_figures_that_fleets_have() -> None:
    assert set(METRICS_NEEDED) <= set(METRICS)


FOREIGN = {
    name: st.one_of(st.none(), st.integers(0, 3))
    for name in ("cpu_foreign_vcpus", "memory_foreign_mb", "disk_foreign_gb", "cpu_max")
}


@LAWS
@given(metrics=st.fixed_dictionaries({**METRICS, **FOREIGN}))
def test_a_publish_and_a_snapshot_come_to_the_same_limits(metrics: dict[str, Any]) -> None:
    told = {name: value for name, value in metrics.items() if value is not None}
    config = ClusterConfig()

    frame = Snapshot.from_json({"nodes": [{"name": "n1", "metrics": told}]}).frame
    published = node_limits(measured_of(told, config), config.ratios, None).limits

    assert frame.limits[:, 0].tolist() == [limit(value) for value in published.as_dict().values()]
