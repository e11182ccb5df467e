"""The machines that ELF objects are linked for, by ELF's number: one file each."""

from tilewright.link.machines.aarch64 import AARCH64
from tilewright.link.machines.arm import ARM
from tilewright.link.machines.riscv64 import RISCV64
from tilewright.link.machines.x86_64 import X86_64

MACHINES = {machine.number: machine for machine in (X86_64, AARCH64, RISCV64, ARM)}
