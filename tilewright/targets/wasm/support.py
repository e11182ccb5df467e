"""Memory for kernels in WebAssembly, where there is no library: blocks that are used again.

The module's memory grows by what no block of an earlier call is large enough for. A block has its
size before it, and the next free one while it is free. A lock lets one thread at a time look for
one; where there is only one, LLVM makes plain instructions of it.
"""

from __future__ import annotations

SUPPORT = """
@free_blocks = internal global ptr null
@taken = internal global i32 0

declare i32 @llvm.wasm.memory.grow.i32(i32, i32)

define internal void @lock() nounwind {
entry:
  br label %try
try:
  %old = atomicrmw xchg ptr @taken, i32 1 acquire, align 4
  %free = icmp eq i32 %old, 0
  br i1 %free, label %end, label %try
end:
  ret void
}

define internal void @unlock() nounwind {
  store atomic i32 0, ptr @taken release, align 4
  ret void
}

define hidden ptr @malloc(i32 %wanted) nounwind {
entry:
  call void @lock()
  br label %look
look:
  ; The place that points to the block which is looked at.
  %place = phi ptr [ @free_blocks, %entry ], [ %next.place, %next ]
  %block = load ptr, ptr %place
  %none = icmp eq ptr %block, null
  br i1 %none, label %grow, label %fits
fits:
  %size = load i32, ptr %block
  %enough = icmp uge i32 %size, %wanted
  br i1 %enough, label %take, label %next
next:
  %next.place = getelementptr i8, ptr %block, i32 4
  br label %look
take:
  %after.place = getelementptr i8, ptr %block, i32 4
  %after = load ptr, ptr %after.place
  store ptr %after, ptr %place
  br label %end
grow:
  ; Whole pages of 64 KiB, and 64 bytes before the block, which begins at a multiple of them.
  %most = icmp ugt i32 %wanted, -131072
  br i1 %most, label %fail, label %ask
ask:
  %up = add i32 %wanted, 65599
  %pages = lshr i32 %up, 16
  %old = call i32 @llvm.wasm.memory.grow.i32(i32 0, i32 %pages)
  %refused = icmp eq i32 %old, -1
  br i1 %refused, label %fail, label %new
new:
  %first = shl i32 %old, 16
  %made = inttoptr i32 %first to ptr
  %all = shl i32 %pages, 16
  %room = sub i32 %all, 64
  store i32 %room, ptr %made
  br label %end
fail:
  call void @unlock()
  call void @llvm.trap()
  unreachable
end:
  %found = phi ptr [ %block, %take ], [ %made, %new ]
  call void @unlock()
  %memory = getelementptr i8, ptr %found, i32 64
  ret ptr %memory
}

declare void @llvm.trap()

define hidden void @free(ptr %memory) nounwind {
  call void @lock()
  %block = getelementptr i8, ptr %memory, i32 -64
  %first = load ptr, ptr @free_blocks
  %place = getelementptr i8, ptr %block, i32 4
  store ptr %first, ptr %place
  store ptr %block, ptr @free_blocks
  call void @unlock()
  ret void
}
"""
