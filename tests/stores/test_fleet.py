"""The arithmetic of `benchmarks/fleet.py`: it comes to an end, it fails where it is wrong, and hot users are told."""

from dataclasses import replace

import pytest

from benchmarks import fleet as calculator
from benchmarks.fleet import Check, Costs, Habits, Load, NodeLoad, Observed, compare, fleet, predicted, user_names

COSTS = Costs(add=0.5, recall=0.6, client_add=2.5, client_recall=5.0, record=3_900, user=1_200)
HABITS = Habits(records=400, adds=4, recalls=8, skew=1.0)
LOAD = Load(users=120, adds=600, recalls=300, skew=1.0, seed=4)


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.0, 1.2])
@pytest.mark.parametrize("cores", [1, 8])
def test_every_number_of_users_has_a_fleet(skew, cores):
    found = [fleet(COSTS, users, replace(HABITS, skew=skew), cores=cores, dollars=400.0) for users in calculator.SIZES]
    nodes = [one.nodes for one in found]
    assert nodes == sorted(nodes)
    assert nodes[-1] > nodes[0] == 1
    assert all(one.dollars == one.machines * 400 for one in found)


def test_a_user_who_is_too_much_for_a_node_is_told_and_limited():
    """Of a hundred million users by Zipf's law, one makes a twentieth of all calls: no number of nodes carries that."""
    small, _, large = (fleet(COSTS, users, HABITS, cores=1, dollars=400.0) for users in calculator.SIZES)
    assert (small.hot, small.limited) == (0, 0)
    assert large.hottest == pytest.approx(large.calls / 19, rel=0.05)
    assert large.hot > 1
    assert 0 < large.limited < 0.5
    even = fleet(COSTS, calculator.SIZES[-1], replace(HABITS, skew=0.0), cores=1, dollars=400.0)
    assert (even.hot, even.limited) == (0, 0)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_nodes_share_the_load_and_a_wrong_cost_fails(nodes):
    told = predicted(COSTS, LOAD, user_names(LOAD), nodes)
    assert len(told) == nodes
    assert sum(node.cpu for node in told) == pytest.approx((600 * 0.5 + 300 * 0.6) / 1000)
    assert sum(node.stored for node in told) == pytest.approx(120 * 1_200 + 600 * 3_900)
    seen = Observed(told, [], [])
    assert all(check.is_close for check in compare("Redis Cluster", COSTS, LOAD, nodes, seen))
    for wrong in (replace(COSTS, add=0.8), replace(COSTS, record=2_000)):
        checks = list(compare("Redis Cluster", wrong, LOAD, nodes, seen))
        assert not all(check.is_close for check in checks)
    idle = Observed([NodeLoad(node.cpu / 2, node.stored) for node in told], [], [])
    assert not all(check.is_close for check in compare("Redis Cluster", COSTS, LOAD, nodes, idle))


@pytest.mark.parametrize(("measured", "is_close"), [(1.0, True), (0.85, True), (0.8, False), (1.3, False)])
def test_a_prediction_is_close_within_a_fifth(measured, is_close):
    assert Check("Postgres", 1, "CPU", predicted=1.0, measured=measured).is_close is is_close
