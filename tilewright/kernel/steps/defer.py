from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.dependence import exchanged
from tilewright.kernel.nest import Alloc, Loop, Nest, stages_in
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Defer(Step):
    """The nest of a stage comes after all others at the outermost level: so that those before it
    may be done together.

    for i: a[i] = …                     for i: a[i] = …
    for i: b[i] = f(a[i])               for j: c[j] = …
    for j: c[j] = …                     for i: b[i] = f(a[i])
    """

    stage: str

    def apply(self, n: Nest) -> Nest:
        places = [k for k, s in enumerate(n.body) if stages_in(s) == {self.stage}]
        alone = places and all(isinstance(n.body[k], Loop) for k in places)
        self.need(alone, f"{self.stage} has no nest of its own at the outermost level")
        later = [n.body[k] for k in places]
        for k in places:
            for other in n.body[k + 1 :]:
                if other not in later and not isinstance(other, Alloc):
                    self.keep(n, exchanged(n, n.body[k], other))
        rest = [s for k, s in enumerate(n.body) if k not in places]
        return replace(n, body=(*rest, *later))
