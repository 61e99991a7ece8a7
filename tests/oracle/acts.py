#!/usr/bin/env python3
"""Goldens of activation quantization, made by compressed-tensors' fake-quant, ModelOpt's MX classes and torch's FP8 casts.

    acts.py [GOLDEN_DIR]      (default tests/golden; writes GOLDEN_DIR/acts/*.safetensors)

inputs.safetensors has
    f32    random FP32 values, rows of different size
    bf16   the same rounded to BF16; the libraries compute in FP32 (in BF16 compressed-tensors rounds its scales to BF16,
           which no kernel does)
    wide   FP32 with blocks of zeros, blocks 2^-40 as large, blocks above the calibrated range, minus zeros
FORMAT.safetensors has for each of them, under its name, what the library makes of it in FP32: quantized and dequantized, all
factors applied; and `scale` F32 [1] for NVFP4 and static FP8.  fp8-block-*: the first 300 columns.

nvfp4 also has the form of the kernels, with reciprocals, as a NumPy transcription of these formulas (FP32 throughout):
    sf = e4m3(SF * (amax * (1/6)));  r = 1 / (sf * (1/SF)), 0 when sf is 0;  code = e2m1(x * r), sign kept
as NAME.codes U8 (two a byte, low nibble first), NAME.scales U8 (E4M3) and NAME.differ F32 [1]: how many values of compressed-
tensors, which divides x by (sf / SF), are not code * (sf / SF).
"""
import pathlib, sys, warnings
import numpy as np
import torch

warnings.filterwarnings("ignore")
from safetensors.torch import save_file
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp, generate_gparam
from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor

torch.set_grad_enabled(False)
torch.set_num_threads(1)
GEN = torch.Generator().manual_seed(1239384)
ROWS, COLS = 7, 384
FP8 = torch.float8_e4m3fn
GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def acts(preset):
    return preset_name_to_scheme(preset, ["Linear"]).input_activations


def ct_dynamic(x, args, global_scale=None):
    scale, zero = compute_dynamic_scales_and_zp(x[None], args, None, global_scale=global_scale)
    return fake_quantize(x[None], scale, zero, args, global_scale=global_scale)[0]


# ---------------------------------------------------------------- NVFP4 with reciprocals

def np_e2m1(v):
    """Codes of the nearest E2M1: by distance, ties to the even code, sign kept."""
    d = np.abs(np.minimum(np.abs(v), np.float32(6))[..., None].astype(np.float64) - GRID)
    near = d == d.min(-1, keepdims=True)
    code = np.where(near.sum(-1) == 2, 2 * ((near.argmax(-1) + 1) // 2), near.argmax(-1))
    return (code | np.signbit(v) * 8).astype(np.uint8)


def np_e4m3(v):
    """Nearest E4M3 of non-negative FP32 values, saturating: bytes and values."""
    t = torch.from_numpy(np.minimum(v, np.float32(448))).to(FP8)
    return t.view(torch.uint8).numpy(), t.float().numpy()


def nvfp4_rcp(x, SF):
    one = np.float32(1)
    b = x.numpy().reshape(ROWS, -1, 16)
    amax = np.abs(b).max(-1)
    sf_byte, sf = np_e4m3(SF * (amax * (one / np.float32(6))))
    with np.errstate(divide="ignore"):
        r = np.where(sf == 0, np.float32(0), one / (sf * (one / SF)))
    code = np_e2m1(b * r[..., None])
    value = (np.where(code & 8, -1, 1) * GRID[code & 7]).astype(np.float32)
    c = code.reshape(ROWS, COLS)
    return c[:, 0::2] | c[:, 1::2] << 4, sf_byte, (value * (sf / SF)[..., None]).reshape(ROWS, COLS)


def nvfp4(x, G):
    fake = ct_dynamic(x, acts("NVFP4"), global_scale=G)
    codes, scales, rcp = nvfp4_rcp(x, np.float32(G.item()))
    differ = int((fake.numpy() != rcp).sum())
    print(f"    rcp against division: {differ} of {rcp.size} values differ")
    return fake, torch.from_numpy(codes), torch.from_numpy(scales), torch.tensor([float(differ)])


# ---------------------------------------------------------------- FP8 in blocks, by torch

def fp8_block(x, eps=0.0, power_of_two=False):
    """Columns in blocks of 128, the last one partial, as DeepSeek-V3 quantizes activations."""
    out = []
    for b in x.split(128, -1):
        amax = b.abs().amax(-1, keepdim=True)
        amax = torch.where(amax > 0, amax.clamp(min=eps), 0)
        s = amax / 448
        if power_of_two:
            s = torch.exp2((amax.double() / 448).log2().ceil().clamp(min=-127)).float()
        q = torch.where(amax > 0, b / s, 0).clamp(-448, 448).to(FP8).float()
        out.append(q * s)
    return torch.cat(out, -1)


# ---------------------------------------------------------------- MX

def mx_floor(x, emax, top, cast):
    """OCP MX: exponent floor(log2 amax) - emax."""
    b = x.numpy().reshape(ROWS, -1, 32)
    amax = np.abs(b).max(-1, keepdims=True)
    e = np.where(amax > 0, np.maximum(np.frexp(amax)[1] - 1 - emax, -127), -127)
    q = cast(np.clip(np.ldexp(b.astype(np.float64), -e), -top, top).astype(np.float32))
    return torch.from_numpy(np.ldexp(q, e).astype(np.float32).reshape(ROWS, COLS))


def cast_e2m1(v):
    c = np_e2m1(v)
    return np.where(c & 8, -1, 1) * GRID[c & 7]


def cast_e4m3(v):
    return torch.from_numpy(v).to(FP8).float().numpy()


def mx_ceil(x, e4m3):
    """ModelOpt's; its E2M1 rounds ties to zero, so the input must have none."""
    if e4m3:
        q, s = MXFP8QTensor.quantize(x)
        codes = q._quantized_data.double()
    else:
        q, s = MXFP4QTensor.quantize(x.clone(), 32)
        codes = unpack_fp4_from_uint8(q._quantized_data, ROWS, COLS, dtype=torch.float32).double()
    e = s.reshape(ROWS, COLS // 32).view(torch.float8_e8m0fnu).double()
    return (codes * e.repeat_interleave(32, -1)).float()


# ---------------------------------------------------------------- data

def random_rows():
    return torch.randn(ROWS, COLS, generator=GEN) * torch.exp(2 * torch.randn(ROWS, 1, generator=GEN))


def wide_rows():
    x = random_rows()
    x[0, 0:128] = 0
    x[1] = 0
    x[2, 32:64] *= 2 ** -40
    x[3] *= 2 ** -40
    x[4, 64:256] *= 64
    x[5, ::5] = -0.0
    x[6] *= torch.exp(4 * torch.randn(COLS, generator=GEN))
    return x


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    f32, wide = random_rows(), wide_rows()
    m = f32.abs().max().reshape(1) * 0.37  # calibration saw less: some blocks saturate
    G = generate_gparam(-m, m)
    static = m / 448

    group = QuantizationArgs(num_bits=8, type="float", strategy="group", symmetric=True, dynamic=True, group_size=128)

    def save(name, **tensors):
        path = out / f"{name}.safetensors"
        save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path)
        path.chmod(0o644)
        print(f"{path.name:32} {path.stat().st_size}")

    def each(name, f, inputs=("f32", "bf16", "wide"), **more):
        save(name, **{k: f(data[k].float()) for k in inputs}, **more)

    data = dict(f32=f32, bf16=f32.bfloat16(), wide=wide)
    save("inputs", **data)
    n = {k: dict(zip(("", ".codes", ".scales", ".differ"), nvfp4(x.float(), G))) for k, x in data.items()}
    save("nvfp4", scale=G, **{k + part: t for k, parts in n.items() for part, t in parts.items()})
    each("fp8-tensor", lambda x: fake_quantize(x, static, None, acts("FP8")), scale=static)
    each("fp8-token", lambda x: ct_dynamic(x, acts("FP8_DYNAMIC")))
    each("fp8-group", lambda x: ct_dynamic(x, group))
    each("fp8-block-eps", lambda x: fp8_block(x[:, :300], eps=1e-4))
    each("fp8-block-ue8m0", lambda x: fp8_block(x[:, :300], power_of_two=True))
    each("mxfp4-even", lambda x: ct_dynamic(x, acts("MXFP4")))
    each("mxfp8-even", lambda x: ct_dynamic(x, acts("MXFP8")))
    each("mxfp4-floor", lambda x: mx_floor(x, 2, 6, cast_e2m1))
    each("mxfp8-floor", lambda x: mx_floor(x, 8, 448, cast_e4m3))
    each("mxfp4-ceil", lambda x: mx_ceil(x, False), inputs=("f32",))
    each("mxfp8-ceil", lambda x: mx_ceil(x, True))


if __name__ == "__main__":
    golden = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden")
    main(golden / "acts")
