"""Operands come before what is made of them, once each, however deep."""

from tilewright.base.traverse import operands_first


def walked(root: int, operands: dict[int, list[int]]) -> list[int]:
    known: dict[int, None] = {}
    for x in operands_first(root, lambda x: operands.get(x, []), known):
        known[x] = None
    return list(known)


def test_order_is_that_of_recursion() -> None:
    assert walked(0, {0: [1, 2], 1: [3, 4], 2: [4, 5]}) == [3, 4, 1, 5, 2, 0]


def test_a_chain_may_be_long() -> None:
    n = 100_000
    assert walked(0, {k: [k + 1] for k in range(n)}) == list(range(n, -1, -1))


def test_what_is_shared_comes_once() -> None:
    doubled = {k: [k + 1, k + 1] for k in range(200)}
    assert len(walked(0, doubled)) == 201


def test_what_is_known_does_not_come() -> None:
    assert list(operands_first(0, lambda x: [1], {0})) == []
