"""What happens to requests and instances over time: waiting, expiring, sleeping, kinds in turn, what samples show."""

from __future__ import annotations

from dataclasses import replace

from fleet.model.resources import Amounts
from fleet.simulation.machines import Domain, Ground
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.run import simulate
from fleet.simulation.scenario import Arrival, Habits, Machine, Shape
from tests.simulation.worlds import SMALL, a_world, at_once, machines

WHOLE = Shape("whole", 16, 16384, 200)


def test_a_request_that_waits_gets_the_room_that_somebody_leaves() -> None:
    first = Arrival(0, SECOND_US, WHOLE, lifetime_us=40 * SECOND_US)
    second = Arrival(1, 5 * SECOND_US, WHOLE)
    # The memory of the one that left is seen to be free by the next sample.
    world = a_world([first, second], machines(1), wait_us=300 * SECOND_US)

    figures = simulate(world, "load-aware").figures

    assert (figures["placed"], figures["delayed"], figures["expired"]) == (2, 1, 0)
    assert figures["wait_ms"]["p99"] > 36_000


def test_a_request_whose_time_is_up_expires() -> None:
    world = a_world(
        [Arrival(0, SECOND_US, WHOLE), Arrival(1, 2 * SECOND_US, WHOLE)], machines(1), wait_us=50 * SECOND_US
    )

    figures = simulate(world, "load-aware").figures

    assert (figures["placed"], figures["refused"], figures["expired"]) == (1, 0, 1)
    assert figures["simulated_seconds"] == 52.0


def test_without_waiting_the_same_request_is_refused_with_its_code() -> None:
    world = a_world([Arrival(0, SECOND_US, WHOLE), Arrival(1, 2 * SECOND_US, WHOLE)], machines(1))

    figures = simulate(world, "load-aware").figures

    assert figures["refused_by_code"] == {"out_of_capacity": 1}
    assert figures["rejected_percent_by_class"] == {"whole": 50.0}


def test_who_is_in_flight_at_the_end_is_pending() -> None:
    world = a_world(at_once(SMALL, 10), machines(4), until_us=SECOND_US + 2500, concurrency=16)

    figures = simulate(world, "load-aware").figures

    assert (figures["requested"], figures["pending"], figures["placed"]) == (10, 10, 0)


def test_what_no_empty_fleet_takes_is_counted_apart() -> None:
    world = a_world([Arrival(0, SECOND_US, replace(WHOLE, cpus=17))], machines(3))

    figures = simulate(world, "load-aware").figures

    assert (figures["refused"], figures["never_fits"]) == (1, 1)


def test_kinds_are_asked_for_in_turn() -> None:
    nodes = [Machine("a", 16, 16384, 200, 1, "A100"), Machine("t", 16, 16384, 200, 1, "T4")]
    either = Shape("gpu", 1, 1024, 10, 1, ("A100", "T4"))
    a100 = Shape("gpu", 1, 1024, 10, 1, ("A100",))
    found = [Arrival(0, SECOND_US, either), Arrival(1, 2 * SECOND_US, either), Arrival(2, 3 * SECOND_US, a100)]

    figures = simulate(a_world(found, nodes), "load-aware").figures

    assert (figures["placed"], figures["refused"]) == (2, 1)
    assert figures["gpus_unallocated_at_end"] == 0


def test_what_can_never_fit_is_not_the_first_gpu_refusal() -> None:
    nodes = [Machine("a", 16, 16384, 200, 2, "A100")]
    shapes = [Shape("gpu", 1, 1024, 10, 4), Shape("gpu", 1, 1024, 10, 1), Shape("gpu", 1, 1024, 10, 2)]
    found = [Arrival(index, (index + 1) * SECOND_US, shape) for index, shape in enumerate(shapes)]

    figures = simulate(a_world(found, nodes), "load-aware").figures

    assert figures["first_gpu_refusal"] == "1x1024x10+2"
    assert figures["placed_at_first_gpu_refusal"] == 1
    assert figures["gpus_unallocated_at_first_refusal"] == 1


def test_utilisation_is_over_time_and_not_at_the_end() -> None:
    found = [Arrival(0, 0, replace(WHOLE, cpus=8), lifetime_us=50 * SECOND_US)]

    figures = simulate(a_world(found, machines(1), until_us=100 * SECOND_US), "load-aware").figures

    assert figures["utilisation_percent"]["cpus"] == 25.0
    assert figures["utilisation_percent_at_end"]["cpus"] == 0.0


def a_ground() -> Ground:
    return Ground(Machine("n", 16, 10_000, 100), Habits())


def test_memory_and_load_show_up_in_samples_by_and_by() -> None:
    ground = a_ground()
    ground.boot(0, Domain(Amounts(4, 4000, 10, 1), load=2.0), 0)

    samples = [ground.sample(second * SECOND_US) for second in (0, 60, 600)]

    assert [sample["memory_available"] for sample in samples] == [10_000, 8426, 6027]
    assert samples[0]["cpu_load_1"] == 0.0
    assert 1.2 < samples[1]["cpu_load_1"] < 1.3
    assert [sample["memory_total_instance_actual"] for sample in samples] == [4000] * 3


def test_a_sleeping_domain_gives_its_memory_back_and_may_not_find_it_again() -> None:
    ground = a_ground()
    for index in (0, 1):
        ground.boot(index, Domain(Amounts(1, 6000, 10, 1), load=0.1), 0)
        ground.sleep(index, index)
    assert ground.sample(SECOND_US)["memory_available"] == 10_000

    assert ground.wake(0, 2 * SECOND_US) == 0
    assert ground.wake(1, 2 * SECOND_US) == 2000


def test_sleepy_instances_that_wake_together_are_reported_as_shortfalls() -> None:
    """Three times the memory is promised; asleep they share it, awake they cannot."""
    from decimal import Decimal

    from tests.simulation.worlds import PLAIN

    config = replace(PLAIN, ram_overcommit_ratio=Decimal(3))
    sleepy = Shape("sleepy", 1, 4096, 1, sleepy=True)
    found = [Arrival(index, index * 300 * SECOND_US, sleepy) for index in range(10)]
    world = a_world(found, machines(1), config=config, until_us=12 * 3600 * SECOND_US)

    figures = simulate(world, "load-aware").figures

    assert figures["placed"] > 4
    assert figures["wakes"] > 0
    assert figures["wake_shortfalls"] > 0
    assert 0 < figures["wake_shortfall_mb_peak"] <= 4096
