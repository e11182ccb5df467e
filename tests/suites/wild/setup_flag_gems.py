"""FlagGems takes this CPU for its device: its operators are put in place of torch's for the CPU."""

# pyright: reportMissingImports=false
import flag_gems

detected = flag_gems.runtime.device
detected.name, detected.dispatch_key = "cpu", "CPU"
flag_gems.device = "cpu"
