"""vLLM's platform is the one GPU that there seems to be; NVIDIA's driver is not asked."""

# pyright: reportMissingImports=false
import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform

vllm.platforms._current_platform = NonNvmlCudaPlatform()
