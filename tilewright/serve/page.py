"""The page of a server for people: what is served, and how it goes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from html import escape

from .batching import Package, Rows, Tensor
from .metrics import Metrics

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
  color: #1d2733; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } td, th { padding: .2rem 1.2rem .2rem 0; text-align: left }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { background: #2d6cdf; height: .8rem; min-width: 1px }
td.wide { width: 20rem }
pre { background: #f2f4f7; padding: .8rem; overflow-x: auto }
@media (prefers-color-scheme: dark) { body { color: #e4e8ee; background: #14181e }
  pre { background: #1f252e } }
"""


def page(package: Package, rows: Rows | None, metrics: Metrics, waiting: int, host: str) -> str:
    """`host` is what the reader's browser calls this server."""
    name = escape(package.name)
    put_together = (
        f"Requests are put together along <code>{escape(rows.symbol)}</code>."
        if rows is not None
        else "Every request runs by itself."
    )
    bounds = ", ".join(
        f"{low} ≤ {escape(symbol)}" + ("" if high is None else f" ≤ {high}")
        for symbol, (low, high) in package.dims.items()
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="5">
<style>{_STYLE}</style></head><body>
<h1>{name}</h1>
<p>{put_together}{f" Sizes: {bounds}." if bounds else ""}</p>
<h2>Inputs</h2>{_tensors(package.inputs)}
<h2>Outputs</h2>{_tensors(package.outputs)}
<h2>Since the start</h2>{_counters(metrics, waiting)}
<h2>Time from request to response</h2>{_histogram(metrics)}
<h2>A request</h2>
<pre>curl -H 'Content-Type: application/json' http://{escape(host)}/v1/run \\
  -d '{_example(package)}'</pre>
<p>Counters for Prometheus are at <a href="/metrics">/metrics</a>;
<a href="/health">/health</a> says whether requests are taken.</p>
</body></html>
"""


def _table(rows: Iterable[str]) -> str:
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _tensors(tensors: Sequence[Tensor]) -> str:
    return _table(
        f"<td><code>{escape(t.name)}</code></td><td>{escape(t.dtype)}</td>"
        f"<td>[{escape(', '.join(map(str, t.shape)))}]</td>"
        for t in tensors
    )


def _counters(metrics: Metrics, waiting: int) -> str:
    seconds = time.monotonic() - metrics.started
    batches = metrics.batches.count
    found = [
        ("up", f"{seconds:.0f} s"),
        *((f"responses {code}", f"{n}") for code, n in sorted(metrics.responses.items())),
        ("runs", f"{batches}"),
        ("requests in a run", f"{metrics.batches.sum / batches:.1f}" if batches else "–"),
        ("half answered within", _within(metrics, 0.5)),
        ("99 % answered within", _within(metrics, 0.99)),
        ("waiting now", f"{waiting}"),
        ("connections now", f"{metrics.connections}"),
    ]
    return _table(f"<td>{name}</td><td class=n>{value}</td>" for name, value in found)


def _within(metrics: Metrics, share: float) -> str:
    found = metrics.latency.quantile(share)
    return "–" if found is None else f"{1000 * found:g} ms"


def _histogram(metrics: Metrics) -> str:
    latency = metrics.latency
    if not latency.count:
        return "<p>No request yet.</p>"
    most = max(latency.counts)
    names = [f"≤ {1000 * b:g} ms" for b in latency.bounds] + ["longer"]
    used = [k for k, count in enumerate(latency.counts) if count]
    return _table(
        f"<td>{names[k]}</td><td class=n>{latency.counts[k]}</td>"
        f'<td class=wide><div class="bar" style="width:{100 * latency.counts[k] / most:.1f}%">'
        "</div></td>"
        for k in range(used[0], used[-1] + 1)
    )


_FEW = 32  # numbers that are written out


def _example(package: Package) -> str:
    inputs: dict[str, object] = {}
    for t in package.inputs:
        sizes = [
            n if isinstance(n, int) else max(1, package.dims.get(n, (1, 1))[0]) for n in t.shape
        ]
        count = 1
        for n in sizes:
            count *= n
        value: object = False if t.dtype == "bool" else 0
        for n in reversed(sizes):
            value = [value] * n
        inputs[t.name] = value if count <= _FEW else "…"
    return escape(json.dumps({"inputs": inputs}, ensure_ascii=False), quote=False)
