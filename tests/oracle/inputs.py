#!/usr/bin/env python3
"""Goldens of whole forwards with quantized inputs, by compressed-tensors' fake-quant.

    inputs.py [GOLDEN_DIR]      (default tests/golden; needs GOLDEN_DIR/models of tiny.py and quant.py)

GOLDEN_DIR/inputs/NAME/ is a checkpoint: config.json says how inputs are quantized; model.safetensors is a link to that of one
of GOLDEN_DIR/models, or a file itself; ids.npy. logits.npy F32 [T][vocab] is transformers' eager forward in FP32 with the exactly
decoded weights, where the input of every quantized linear goes through
    compressed_tensors.quantization.lifecycle.forward.forward_quantize     (its own dynamic scales and fake_quantize)
with the scales of the file. FP8 in blocks with DeepSeek's clamp is not in that library: acts.fp8_block, per token.

Two implementations of one rounding part where a value is within a rounding error of a tie between two codes, because the sums
before it have another order. One code that differs makes others differ in the layers above and in all later tokens, so the
logits part by percents. Therefore every forward is done twice more, with each value that is quantized moved by 2^-20 of
itself and then the other way, and token ids are drawn anew until all three agree to 1e-4; the script prints how many draws
had such a tie. NVFP4 is x / (sf / G) in this library and x * (1 / (sf * (1 / SF))) in kernels and in kld, which part likewise.
"""
import json, os, pathlib, sys
import numpy as np
import torch
import transformers as T

from acts import fp8_block
from quant import FP8, decoded, fresh
from safetensors.torch import load_file, save_file
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import forward_quantize

torch.set_grad_enabled(False)
torch.set_num_threads(1)
SEED = 7731


class Holder(torch.nn.Module):
    """What forward_quantize asks of a module."""
    quantization_status = __import__("compressed_tensors").quantization.QuantizationStatus.COMPRESSED


def by_library(args, scales):
    def make(name):
        h = Holder()
        for k, v in scales(name).items():
            setattr(h, k, v)
        return lambda x: forward_quantize(h, x, "input", args)
    return make


def move(x, way):
    sign = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(x.numel())).mul(2).sub(1)
    return x * (1 + way * sign * 2.0**-20)


def forward(self, x):
        sign = self.way * torch.randint(0, 2, self.weight.shape, generator=torch.Generator().manual_seed(self.weight.numel())).mul(2).sub(1)
        return (x.double() @ (self.weight.double() * (1 + sign * 2.0**-20)).T).float()


def forward(tensors, base, ids, quantizer, way):
    m = T.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    m.load_state_dict(decoded(tensors), strict=True)
    for n, x in m.named_modules():
        if isinstance(x, torch.nn.Linear) and n != "lm_head":
            q = quantizer(n)
            x.register_forward_pre_hook(lambda mod, a, q=q: (q(move(a[0], way)),))
    return m(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()


def put(out, name, model, tensors, config, quantizer, file=None):
    folder = fresh(out / "inputs" / name)
    if file is None:
        os.symlink(f"../../models/{model}/model.safetensors", folder / "model.safetensors")
    else:
        save_file(file, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for ties in range(50):
        ids = torch.randint(6, 128, (32,), generator=torch.Generator().manual_seed(SEED + ties)).numpy()
        logits, *again = (forward(tensors, out / "models/qwen3-base", ids, quantizer, way) for way in (0, 1, -1))
        if all(np.abs(logits - x).max() < 1e-4 * np.abs(logits).max() for x in again):
            break
    else:
        raise SystemExit(f"{name}: every draw of ids has a tie")
    np.save(folder / "ids.npy", ids)
    np.save(folder / "logits.npy", logits)
    for f in folder.iterdir():
        if not f.is_symlink():
            f.chmod(0o644)
    plain = forward(tensors, out / "models/qwen3-base", ids, lambda n: lambda x: x, 0)
    change = np.abs(logits - plain).max() / np.abs(logits).max()
    print(f"{name:16} draws with a tie {ties}, largest change by quantized inputs {change:.3f} of the largest logit", flush=True)


def config_of(out, model):
    return json.loads((out / "models" / model / "config.json").read_text())


def ct(out, name, model, preset):
    """The tensors of a compressed-tensors checkpoint, its inputs by the library's preset."""
    args = preset_name_to_scheme(preset, ["Linear"]).input_activations
    tensors, cfg = load_file(out / "models" / model / "model.safetensors"), config_of(out, model)
    group = cfg["quantization_config"]["config_groups"]["group_0"]
    group["input_activations"] = json.loads(args.model_dump_json())

    def scales(n):
        return {"input_global_scale": tensors[n + ".input_global_scale"]} if preset == "NVFP4" else {}
    put(out, name, model, tensors, cfg, by_library(args, scales))


def modelopt(out, name, model, preset):
    args = preset_name_to_scheme(preset, ["Linear"]).input_activations
    tensors = load_file(out / "models" / model / "model.safetensors")

    def scales(n):
        s = tensors[n + ".input_scale"].reshape(1)
        return {"input_scale": s} if preset == "FP8" else {"input_global_scale": 1 / s}
    put(out, name, model, tensors, config_of(out, model), by_library(args, scales))


def block(out, name, power_of_two):
    """quant_method fp8 with blocks of 128, of which these matrices have one, partial."""
    base = out / "models/qwen3-base"
    tensors = load_file(base / "model.safetensors")
    exact = dict(tensors)
    for k in [k for k in tensors if k.endswith("_proj.weight")]:
        w = tensors[k].float()
        s = torch.exp2((w.abs().max().double() / 448).log2().ceil()).float() if power_of_two else w.abs().max() / 448
        tensors[k] = (w / s).to(FP8)
        tensors[k + "_scale_inv"] = s.reshape(1, 1)
        exact[k] = (tensors[k].double() * s.double()).float()
    cfg = config_of(out, "qwen3-base")
    cfg["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                  "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    if power_of_two:
        cfg["quantization_config"]["scale_fmt"] = "ue8m0"

    def quantizer(n):
        return lambda x: fp8_block(x[0], eps=1e-4, power_of_two=power_of_two)[None]
    put(out, name, "qwen3-base", exact, cfg, quantizer, file=tensors)


def main(out):
    ct(out, "nvfp4-ct", "qwen3-nvfp4-ct", "NVFP4")
    ct(out, "nvfp4-fp8", "qwen3-nvfp4-ct", "FP8_DYNAMIC")   # W4A8
    ct(out, "mxfp4", "qwen3-mxfp4-ct", "MXFP4")
    ct(out, "mxfp4-fp8", "qwen3-mxfp4-ct", "FP8_DYNAMIC")
    ct(out, "mxfp8", "qwen3-fp8-ct-channel", "MXFP8")
    ct(out, "fp8-token", "qwen3-fp8-ct-channel", "FP8_DYNAMIC")
    modelopt(out, "nvfp4-modelopt", "qwen3-nvfp4-modelopt", "NVFP4")
    modelopt(out, "fp8-static", "qwen3-fp8-modelopt", "FP8")
    block(out, "fp8-block", False)
    block(out, "fp8-block-ue8m0", True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden"))
