#!/usr/bin/env python3
"""The logits of transformers in FP32 with eager attention, for one window of ids.

    logits_peer.py MODEL_DIR IDS.npy OUT.npy      IDS int [T]; OUT float32 [T][vocab]
"""
import sys
import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main(model_dir, ids_path, out_path):
    ids = torch.from_numpy(np.load(ids_path).astype(np.int64).reshape(1, -1))
    with torch.no_grad():
        m = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager").eval()
        logits = m(input_ids=ids, use_cache=False).logits[0]
    np.save(out_path, logits.numpy())
    print(f"{out_path}: {list(logits.shape)}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
