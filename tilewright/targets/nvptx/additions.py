"""Additions of what a warp has in registers to memory, by the copy engine of sm_90a.

Threads write it to shared memory that is their warp's own, and one of them asks the engine to add
it: 4 numbers of each of 32 threads, then the next 4. The engine reads while threads go on; they
wait for that before they write there again, and before they end.
"""

from __future__ import annotations

from tilewright.kernel.intrinsic import Intrinsic, Sizes, declare

LANES, EACH = 32, 4  # threads, and neighbours that each writes at a time
BLOCK = 4 * LANES * EACH  # bytes
FENCE = "fence.proxy.async.shared::cta;"
WAIT = "cp.async.bulk.wait_group.read 0;"
ELECT = "@llvm.nvvm.elect.sync"


def _alone(text: str) -> str:
    return f'call void asm sideeffect "{text}", "~{{memory}}"()'


def _bytes(sizes: Sizes) -> int:
    return BLOCK * (sizes["b"] or 0)


def _body(sizes: Sizes) -> str:
    meet = "  call void @llvm.nvvm.bar.warp.sync(i32 -1)"
    lines = [
        "  %x = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
        "  %y = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()",
        "  %row = shl i32 %y, 2",
        "  %lane = add i32 %row, %x",
        f"  %lane.at = mul i32 %lane, {4 * EACH}",
        "  %own = getelementptr i8, ptr addrspace(3) %staged, i32 %lane.at",
        f"  {_alone(WAIT)}",
        meet,
    ]
    places = ", ".join(f"${k + 1}" for k in range(EACH))
    text = f"st.shared.v{EACH}.f32 [$0], {{{places}}};"
    for b in range(sizes["b"] or 0):
        lines.append(f"  %to{b} = getelementptr i8, ptr addrspace(3) %own, i32 {b * BLOCK}")
        given = [f"ptr addrspace(3) %to{b}"]
        for k in range(EACH * b, EACH * (b + 1)):
            lines.append(f"  %p{k} = getelementptr float, ptr %s, i64 {k}")
            lines.append(f"  %s{k} = load float, ptr %p{k}, align 4")
            given.append(f"float %s{k}")
        kinds = ",".join(["l", *"f" * EACH])
        line = f'call void asm sideeffect "{text}", "{kinds},~{{memory}}"({", ".join(given)})'
        lines.append(f"  {line}")
    add = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [$0], [$1], $2;"
    given = f"ptr addrspace(1) %into, ptr addrspace(3) %staged, i32 {_bytes(sizes)}"
    lines += [
        f"  {_alone(FENCE)}",
        meet,
        f"  %one = call {{ i32, i1 }} {ELECT}(i32 -1)",
        "  %elected = extractvalue { i32, i1 } %one, 1",
        "  br i1 %elected, label %ask, label %done",
        "ask:",
        "  %into = addrspacecast ptr %d to ptr addrspace(1)",
        f'  call void asm sideeffect "{add}", "l,l,n,~{{memory}}"({given})',
        f"  {_alone('cp.async.bulk.commit_group;')}",
        "  br label %done",
        "done:",
        "  ret void",
    ]
    return "\n".join(lines)


declare(
    Intrinsic(
        "nvptx.add.f32",
        """
group add where blocks: 1..32
  in s: f32[blocks,2,8,4,2]
  out d: f32[blocks,8,4,2,2]
  d[d.b,d.y,d.x,d.h,d.e] add= s[d.b,d.h,d.y,d.x,d.e] for d.b in blocks, d.y in 8, d.x in 4, \
d.h in 2, d.e in 2
""",
        {"d": (LANES * EACH, 16, 4, 2, 1)},
        _body,
        (
            "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
            "declare i32 @llvm.nvvm.read.ptx.sreg.tid.y()",
            "declare void @llvm.nvvm.bar.warp.sync(i32)",
            f"declare {{ i32, i1 }} {ELECT}(i32) convergent",
        ),
        ("tma",),
        leave=(_alone(WAIT),),
        fragments={"s": "b, h, thread.y: y, thread.x: x, e"},
        atomic=True,
        staged=_bytes,
    )
)
