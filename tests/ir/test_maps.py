"""Index maps print, parse, know the target shape and invert."""

import itertools

import pytest

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.maps import Map

TEXTS = [
    "k, j -> j//32, k, j%32",
    "i -> i",
    "a, b, c -> c, a, b",
    "n, c, h -> n, c//8, h, (c//2)%4, c%2",
    "n, c, h -> n, c//8, h, (c%8)//4, c%4",
    "j -> 0, j",
    " -> ",
]


@pytest.mark.parametrize("text", TEXTS)
def test_print_and_parse_are_inverses(text: str) -> None:
    m = Map.parse(text)
    assert Map.parse(str(m)) == m
    assert eval(repr(m), {"Map": Map}) == m
    assert hash(Map.parse(text)) == hash(m)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("extent", [1, 5, 8, 17])
def test_every_element_has_its_own_place_inside_the_target_and_comes_back(
    text: str, extent: int
) -> None:
    m = Map.parse(text)
    source = (extent, extent + 1, 2)[: len(m.axes)]
    shape = m.shape(source)
    back = m.inverse()
    places = set()
    for i in itertools.product(*map(range, source)):
        at = m.apply(i)
        assert all(
            isinstance(a, int) and isinstance(n, int) and 0 <= a < n for a, n in zip(at, shape)
        )
        assert back.apply(at) == i
        places.add(at)
    total = 1
    for n in source:
        total *= n
    assert len(places) == total


def test_shapes_round_up_and_say_what_is_padded() -> None:
    m = Map.parse("k, j -> j//32, k, j%32")
    assert m.shape((7, 50)) == (2, 7, 32)
    assert m.padded_axes((7, 50)) == (1,)
    assert m.padded_axes((7, 64)) == ()
    wide = D.sym("N", 1, 4096, multiple=64)
    assert m.padded_axes((7, wide)) == ()
    assert m.shape((7, D.sym("M", 1, 100)))[0] is D.ceildiv(D.sym("M", 1, 100), 32)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("k, j", "no '->'"),
        ("k, k -> k", "twice"),
        ("k -> l", "not a source axis"),
        ("k -> k, /", "not a list"),
        ("k -> f(k)", "not an index function"),
        ("k -> k//0", "divides by 0"),
    ],
)
def test_bad_text_gets_a_sentence(text: str, part: str) -> None:
    with pytest.raises(Invalid, match=part):
        Map.parse(text)


@pytest.mark.parametrize(
    "text", ["j -> j//4", "j -> j%4", "k, j -> j", "j -> j//4, j%2", "j -> j, j%4", "j -> j+1"]
)
def test_a_map_that_loses_or_doubles_elements_has_no_inverse(text: str) -> None:
    with pytest.raises(Invalid, match=r"cannot be read back|not a block"):
        Map.parse(text).inverse()
