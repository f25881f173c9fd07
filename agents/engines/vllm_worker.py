"""What envhub adds to vLLM's worker process. Imported there only, by its name."""

from pathlib import Path
from typing import Any


class WorkerExtension:
    """Mixed into vLLM's worker class (`worker_extension_cls`); its methods are called by `collective_rpc`."""

    model_runner: Any
    vllm_config: Any

    def envhub_load(self, path: str) -> int:
        """Load every tensor of a safetensors file or folder over the model's weights; returns how many."""
        from vllm.config import set_current_vllm_config

        from envhub.agents.engines.weights import iterate_file

        count = 0

        def counted() -> Any:
            nonlocal count
            for item in iterate_file(Path(path)):
                count += 1
                yield item

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.reload_weights(weights_iterator=counted())
            _repack_tied(self.model_runner.get_model())
        return count


def _repack_tied(model: Any) -> None:
    """Pack an output layer anew that shares the embedding's weight.

    On a CPU vLLM multiplies by a packed copy, made when a layer is loaded. A tied output layer has no tensor of its own
    in a checkpoint, so reloading leaves its copy as it was.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    for module in model.modules():
        if isinstance(module, ParallelLMHead | VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)
