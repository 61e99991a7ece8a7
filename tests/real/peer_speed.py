#!/usr/bin/env python3
"""Speed of transformers at the work of a capture, as a user would write it: prints one line of JSON.

    peer_speed.py MODEL_DIR IDS.npy WINDOW

FP32 on the CPU, all cores, the default attention, windows of WINDOW ids one at a time; for each the logits, the log-softmax and
the 256 most probable tokens. Loading and one short warm-up are timed apart. Peak memory is that of the whole process.
"""
import json, os, resource, sys, time
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

TOP_K = 256


def score(m, ids):
    lp = torch.log_softmax(m(input_ids=ids[None], use_cache=False).logits[0], dim=-1)
    return lp.topk(min(TOP_K, lp.shape[-1]), dim=-1)


def main(model_dir, ids_path, window):
    ids = torch.from_numpy(np.load(ids_path).astype(np.int64).reshape(-1))
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    t0 = time.perf_counter()
    m = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        score(m, ids[:16])
        t1 = time.perf_counter()
        for i in range(0, len(ids), window):
            score(m, ids[i:i + window])
        t2 = time.perf_counter()
    print(json.dumps({
        "tokens": len(ids), "window": window, "seconds": round(t2 - t1, 3), "tokens_per_second": round(len(ids) / (t2 - t1), 2),
        "load_seconds": round(t1 - t0, 3), "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "threads": torch.get_num_threads(), "attention": m.config._attn_implementation, "dtype": "float32",
        "torch": torch.__version__, "transformers": transformers.__version__}))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
