"""The page of a schedule: one file with its style inside, light and dark, for any browser."""

from __future__ import annotations

import html
from string import Template

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfcf9; --ink: #23211d; --soft: #6f6a60; --line: #e4dfd4; --card: #ffffff;
  --keyword: #8a4b08; --parallel: #0b6e4f; --lane: #5b3fa8; --number: #1f5fa8;
  --old: #fbe9e5; --new: #e6f4e6; --gone: #f3bdb2; --fresh: #b2dfb4;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181c; --ink: #e3e0d9; --soft: #98938a; --line: #30333a; --card: #1d2026;
    --keyword: #e5b26b; --parallel: #63cfa3; --lane: #bda6f5; --number: #85b7f0;
    --old: #3a2324; --new: #1e3326; --gone: #7a3935; --fresh: #2f6b42;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 3rem 1.5rem 5rem; max-width: 78rem; background: var(--paper);
  color: var(--ink); font: 17px/1.55 "Iowan Old Style", Charter, Georgia, serif;
}
h1 { font-size: 2rem; font-weight: 600; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.2rem; font-weight: 600; margin: 2.6rem 0 0.7rem; }
p { margin: 0.4rem 0; }
.summary { color: var(--soft); margin: 0.2rem 0 0; }
pre, code, table.diff td, td, .number {
  font-family: ui-monospace, "SF Mono", "Cascadia Code", Menlo, Consolas, monospace;
  font-size: 13.5px;
}
pre {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.2rem; overflow-x: auto; line-height: 1.5; margin: 0;
}
table { border-collapse: collapse; }
table.buffers td, table.buffers th {
  text-align: left; padding: 0.3rem 1.6rem 0.3rem 0; border-bottom: 1px solid var(--line);
}
th { font-weight: 600; font-size: 0.85rem; color: var(--soft); }
details { margin: 0.9rem 0; }
details.step {
  background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 0.8rem 1.2rem 1rem;
}
summary { cursor: pointer; }
.number { color: var(--soft); display: inline-block; min-width: 2.2rem; }
details.step > p { color: var(--soft); font-size: 0.95rem; margin: 0.4rem 0 0.7rem; }
.scroll { overflow-x: auto; }
table.diff { width: 100%; table-layout: fixed; }
table.diff th { text-align: left; padding: 0 0.6rem 0.25rem; }
table.diff td {
  white-space: pre-wrap; overflow-wrap: anywhere; vertical-align: top; padding: 0.08rem 0.6rem;
  line-height: 1.5;
}
td.old { background: var(--old); }
td.new { background: var(--new); }
td.old mark { background: var(--gone); color: inherit; border-radius: 3px; }
td.new mark { background: var(--fresh); color: inherit; border-radius: 3px; }
td.skip { color: var(--soft); font-style: italic; }
.k { color: var(--keyword); font-weight: 600; }
.k.parallel, .k.block, .k.thread { color: var(--parallel); }
.k.lane, .k.unroll, .k.tensor { color: var(--lane); }
.n { color: var(--number); }
@media (max-width: 50rem) { body { padding: 1.5rem 0.9rem 3rem; } td { font-size: 12px; } }
"""

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<header><h1>$title</h1><p class="summary">$summary</p></header>
<h2>Loops</h2>
<pre class="loops">$loops</pre>
<h2>Buffers</h2>
<div class="scroll"><table class="buffers">
<tr><th>name</th><th>scope</th><th>elements</th><th>size</th></tr>
$buffers
</table></div>
<details><summary>What is computed</summary>
<pre>$definition</pre></details>
<h2>Steps</h2>
$steps
</body>
</html>
""")


def page(*, title: str, summary: str, loops: str, buffers: str, definition: str, steps: str) -> str:
    """The page; `title` and `summary` are plain text, the rest is markup."""
    return _PAGE.substitute(
        title=html.escape(title),
        summary=html.escape(summary),
        style=_STYLE,
        loops=loops,
        buffers=buffers,
        definition=definition,
        steps=steps,
    )
