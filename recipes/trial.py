"""Write the model with which `lacli.llamacpp.probe` tries a build: trial.py lacli/data/trial.gguf.gz.

A llama model whose weights are all 0, with one layer for each type of most model files' matrices: types have kernels of
their own. 256 is the least width that K-quants allow.
"""

import gzip
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np

TYPES = [getattr(gguf.GGMLQuantizationType, name) for name in ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")]
WIDTH, VOCABULARY = 256, 64


def main(target: Path) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trial.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        tokens = [chr(ord("!") + number) for number in range(VOCABULARY)]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_merges([" ".join(tokens[:2])])
        writer.add_block_count(len(TYPES))
        writer.add_context_length(WIDTH)
        writer.add_embedding_length(WIDTH)
        writer.add_feed_forward_length(WIDTH)
        writer.add_head_count(4)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tensor("token_embd.weight", np.zeros((VOCABULARY, WIDTH), np.float16))
        writer.add_tensor("output_norm.weight", np.zeros(WIDTH, np.float32))
        for layer, kind in enumerate(TYPES):
            values, size = gguf.GGML_QUANT_SIZES[kind]
            for name in ("attn_norm", "ffn_norm"):
                writer.add_tensor(f"blk.{layer}.{name}.weight", np.zeros(WIDTH, np.float32))
            for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
                raw = np.zeros((WIDTH, WIDTH * size // values), np.uint8)
                writer.add_tensor(f"blk.{layer}.{name}.weight", raw, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
