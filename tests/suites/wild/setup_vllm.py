"""vLLM takes the one GPU that there seems to be for its platform, without asking NVIDIA's driver."""

# pyright: reportMissingImports=false
import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform

vllm.platforms._current_platform = NonNvmlCudaPlatform()
