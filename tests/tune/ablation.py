"""How fast a search finds fast schedules: with the model that learns, with the analytic one, and at
random. Curves of the best time so far over trials, as a table and a page.

python -m tests.tune.ablation --replay FILE   schedules that `tilewright tune collect` measured
python -m tests.tune.ablation --live 6        groups drawn at random, measured on this machine

A replay measures nothing: each search takes a few of the measured schedules of a group at a time,
by its model, and is told their times. `pretrained` begins with trees that were trained on other
groups, `learned` with none; both learn from what they take. Groups are divided into five parts, and
those of a part are searched with trees of the other four; `--parts 1` replays one of them only.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

import numpy as np

from tilewright import targets
from tilewright.driver.learning.drawn import family_of, group_of_draw
from tilewright.driver.looking.tables import new_table, rendered
from tilewright.runtime import pool
from tilewright.tune.measuring.process import Measuring
from tilewright.tune.models import Analytic, pretrained
from tilewright.tune.models.learned import (
    FEWEST,
    TREES,
    WHILE_TUNING,
    Learned,
    Query,
    predict,
    train,
    trees_of,
)
from tilewright.tune.models.samples import load_samples
from tilewright.tune.models.training import FOLDS, Measurements, all_measurements, trained
from tilewright.tune.search import search_named
from tilewright.tune.search.state import Model
from tilewright.tune.tuner import Tuning

BATCH = 8
SHOWN = (0, 8, 16, 24, 32, 48, 64)
# The best time so far, relative to the default schedule's, after each number of trials.
Curve = list[float]
COLOURS = {
    "best": "#ccc",  # of all that were measured, known at once
    "random": "#999",
    "analytic": "#36c",
    "learned": "#c63",
    "pretrained": "#293",
}


def replayed(m: Measurements, way: str, first: Path | None, trials: int, seed: int) -> Curve:
    """A search that can only take schedules that were measured, a few at a time."""
    times, rows, rng = m.query.times, m.query.rows, Random(seed)
    if way == "best":
        return [1.0] + [min(1.0, float(2.0 ** times.min()))] * trials
    left = list(range(1, len(times)))
    rng.shuffle(left)
    done, curve = [0], [1.0]
    while left and len(curve) <= trials:
        if way == "analytic":
            left.sort(key=lambda k: rows[k, 0])
        elif way in ("learned", "pretrained"):
            scores = _scores(m, done, first)
            left.sort(key=lambda k: scores[k])
        for k in left[:BATCH]:
            done.append(k)
            curve.append(min(curve[-1], float(2.0 ** times[k])))
        del left[:BATCH]
    return (curve + [curve[-1]] * trials)[: trials + 1]


def _scores(m: Measurements, done: list[int], first: Path | None) -> np.ndarray:
    """As the model that learns has them: from what is known before, then from what is measured."""
    if len(done) < FEWEST:
        return predict(None if first is None else trees_of(first, print), m.query.rows)
    query = Query(m.query.rows[done], m.query.times[done])
    before = str(first) if first is not None else None
    return predict(train([query], TREES, before, WHILE_TUNING), m.query.rows)


def replay(
    found: Sequence[Measurements], trials: int, seeds: int, trees: int = 200, parts: int = FOLDS
) -> Iterator[tuple[str, list[Curve]]]:
    """Each way over the groups of some parts; what is pretrained never saw a group that it
    searches, nor the same one once more."""
    number = {text: k % FOLDS for k, text in enumerate(dict.fromkeys(m.text for m in found))}
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for part in range(parts):
            others = [m for m in found if number[m.text] != part]
            files.append(Path(folder) / f"{part}.txt")
            trained(others, trees).save_model(str(files[-1]))
        searched = [m for m in found if number[m.text] < parts]
        for way in COLOURS:
            curves = []
            for m in searched:
                first = files[number[m.text]] if way == "pretrained" else None
                curves += [replayed(m, way, first, trials, s) for s in range(seeds)]
            yield way, curves


def live(groups: int, trials: int, seeds: int) -> Iterator[tuple[str, list[Curve]]]:
    target = targets.default()
    shipped = pretrained(target)
    ways: dict[str, tuple[str, Callable[[], Model]]] = {
        "random": ("random", Analytic),
        "analytic": ("evolution", Analytic),
        "learned": ("evolution", Learned),
    }
    if shipped is not None:
        ways["pretrained"] = ("evolution", lambda: Learned(shipped))
    measuring = Measuring(target, pool.get_threads())
    try:
        for way, (search, model) in ways.items():
            curves = []
            for draw in range(groups):
                for seed in range(seeds):
                    group = group_of_draw(draw, 1000, target)
                    print(f"{way}: {family_of(draw)}, seed {seed}", flush=True)
                    made = Tuning(group, target, measuring, search_named(search), model(), seed)
                    while len(made.trials) < trials and made.step(BATCH):
                        pass
                    curve = [1.0]
                    for t in made.trials:
                        curve.append(min(curve[-1], t.ratio if t.ratio is not None else curve[-1]))
                    curves.append((curve + [curve[-1]] * trials)[: trials + 1])
            yield way, curves
    finally:
        measuring.close()


def mean(curves: Sequence[Curve]) -> Curve:
    """The geometric mean at each number of trials."""
    return [float(x) for x in np.exp(np.log(np.array(curves)).mean(axis=0))]


def picture(means: Mapping[str, Curve], width: int = 720, height: int = 400) -> str:
    """All curves as a picture (SVG)."""
    least = min(min(c) for c in means.values())
    count = max(len(c) for c in means.values()) - 1
    left, right, top, bottom = 60, width - 20, 20, height - 50

    def x(i: float) -> float:
        return left + (right - left) * i / max(1, count)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - least) / max(1e-9, 1 - least)

    parts = []
    for k in range(6):
        value, i = least + (1 - least) * k / 5, count * k // 5
        line = f"M{left} {y(value):.1f}H{right}"
        parts.append(f'<path d="{line}" stroke="#eee"/>')
        parts.append(f'<text x="14" y="{y(value) + 5:.1f}" fill="#555">{value:.2f}</text>')
        parts.append(f'<text x="{x(i):.1f}" y="{bottom + 18}" fill="#555">{i}</text>')
    for k, (way, curve) in enumerate(means.items()):
        at = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(curve))
        style = f'fill="none" stroke="{COLOURS[way]}" stroke-width="2"'
        parts.append(f'<polyline {style} points="{at}"/>')
        where = f'x="{width - 150}" y="{34 + 18 * k}" fill="{COLOURS[way]}"'
        parts.append(f"<text {where}>{way}: {curve[-1]:.3f}</text>")
    said = "best time so far by the default schedule's, over trials"
    parts.append(f'<text x="{left}" y="{height - 10}">{said}</text>')
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="14"'
    return f"<svg {head}>{''.join(parts)}</svg>"


def page(means: Mapping[str, Curve]) -> str:
    """The picture as a page that needs nothing else."""
    style = "body{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto}"
    head = f"<meta charset=utf-8><title>ablation</title><style>{style}</style>"
    return f"<!doctype html>{head}{picture(means)}"


def table(means: Mapping[str, Curve]) -> str:
    shown = [k for k in SHOWN if all(k < len(c) for c in means.values())]
    made = new_table("search", *(f"{k} trials" for k in shown))
    for way, curve in means.items():
        made.add_row(way, *(f"{curve[k]:.3f}" for k in shown))
    return rendered(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.tune.ablation")
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--live", type=int, metavar="GROUPS", default=6)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--parts", type=int, default=FOLDS, help=f"of the {FOLDS}, to replay")
    parser.add_argument(
        "--page", type=Path, default=Path("ablation.html"), help="or .svg: the picture alone"
    )
    given = parser.parse_args()
    if given.replay is not None:
        samples, problems = load_samples(given.replay)
        found, more = all_measurements(samples)
        for problem in (*problems, *more):
            print(problem)
        ways = replay(found, given.trials, given.seeds, parts=given.parts)
    else:
        ways = live(given.live, given.trials, given.seeds)
    means = {way: mean(curves) for way, curves in ways}
    print(table(means))
    given.page.write_text(picture(means) if given.page.suffix == ".svg" else page(means))
    print(f"curves are in {given.page}")


if __name__ == "__main__":
    main()
