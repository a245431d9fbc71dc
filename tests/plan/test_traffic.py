"""What crosses memory once chains of operations are fused."""

from __future__ import annotations

from automap_launch.plan.traffic import memory_traffic
from tests.plan.programs import Builder


def chain(**consumer):
    """x -> exp -> negate -> (consumer), with a dot as the consumer by default."""
    b = Builder()
    x, e, n, out = (b.value((8, 8), (None, None)) for _ in range(4))
    b.op("exponential", (x,), (e,), fusable=True)
    b.op("negate", (e,), (n,), fusable=True)
    b.op(**{"name": "dot_general", "operands": (n, n), "results": (out,), **consumer})
    b.result(out)
    return b.program()


def test_only_a_chains_ends_are_counted():
    traffic = memory_traffic(chain())
    assert traffic.reads == ((True,), (False,), (True, False))
    assert traffic.writes == ((False,), (True,), (True,))
    assert traffic.materialised == (True, False, True, True)
    assert traffic.chain[0] == traffic.chain[1] != traffic.chain[2]


def test_a_reduction_takes_a_chains_result_without_its_being_written():
    assert memory_traffic(chain(name="reduce", operands=(2,))).writes == ((False,), (False,), (True,))


def test_what_the_backward_part_needs_is_written():
    kept = memory_traffic(chain(name="multiply", operands=(2,), fusable=True, part="backward"))
    assert kept.writes == ((False,), (True,), (True,))
    assert memory_traffic(chain(name="multiply", operands=(2,), fusable=True)).writes[1] == (False,)


def test_a_chains_input_is_read_once():
    b = Builder()
    x, a, c, d = (b.value((8,), (None,)) for _ in range(4))
    b.op("exponential", (x,), (a,), fusable=True)
    b.op("multiply", (a, x), (c,), fusable=True)
    b.op("dot_general", (x, c), (d,))
    assert memory_traffic(b.program()).reads == ((True,), (False, False), (True, True))


def test_a_result_of_the_step_is_written_whoever_uses_it():
    b = Builder()
    x, a, c = (b.value((8,), (None,)) for _ in range(3))
    b.op("exponential", (x,), (a,), fusable=True)
    b.op("negate", (a,), (c,), fusable=True)
    b.result(a)
    b.result(c)
    assert memory_traffic(b.program()).writes == ((True,), (True,))


def test_a_gather_does_not_read_its_whole_table():
    b = Builder()
    table, rows, out = b.value((1000, 8), (None, None)), b.value((4,), (None,)), b.value((4, 8), (None, None))
    b.op("gather", (table, rows), (out,))
    b.result(out)
    assert memory_traffic(b.program()).reads == ((False, True),)
