#!/usr/bin/env python3
"""Quantization goldens, made by the libraries that define the formats (compressed-tensors, ModelOpt, transformers, AutoGPTQ,
torch's FP8 types).

    quant.py [GOLDEN_DIR]      (default tests/golden; GOLDEN_DIR/models/qwen3-base of tiny.py must exist)

GOLDEN_DIR/quant/codes.safetensors       every code of E2M1 (a byte is a pair), E4M3FN, E5M2, E8M0
GOLDEN_DIR/quant/decode-*.safetensors    random codes and scales under their on-disk names;
                                         `expected` F32 as the library computes it, `exact` F64 = code * scale (* or / global)
GOLDEN_DIR/quant/encode-*.safetensors    `input` BF16 and what the library's round-to-nearest encoder makes of it
GOLDEN_DIR/models/qwen3-*                whole checkpoints; logits.npy is the FP32 forward of the exactly decoded weights
                                         (weights only: activations are not quantized)

Encoding rules, as observed in the pinned versions. r(x) rounds to the dtype of the weight, in which the library computes there:
to BF16 for a BF16 weight, to FP32 for an FP32 one. Everything else is FP32. "Even" is nearest, ties to the even code.

ModelOpt NVFP4
  weight_scale_2 = amax(W) / 2688 (2688 = 6 * 448). The exporter first takes the largest amax of q/k/v and of gate/up
  (likewise for input_scale = amax(x) / 2688).
  block scale = e4m3(clamp(amax_block / (6 * weight_scale_2), 2^-9, 448)); a quotient of 0 becomes 1.0 first.
  code = even(x / (scale * weight_scale_2)). The sign bit is x < 0: small negatives give code 8, an input of -0 gives code 0.
compressed-tensors NVFP4 (amax from min/max, shared like llm-compressor's observers)
  weight_global_scale G = r(2688 * r(1 / amax(W))), stored as F32 [1]; shared by q/k/v and by gate/up (largest amax).
  block scale = e4m3(clamp(G * r(amax_block / 6))); a result of 0 becomes 0.125.
  code = even(x / (scale / G)), sign bit as above.
compressed-tensors MXFP4
  exponent = floor(log2(amax)) - 2, plus 1 when the mantissa of amax is 1.75 or more (the largest code would round past 6).
  Values above 6 saturate. code = even(x / 2^exponent), sign bit as above. A zero block gets byte 0.
ModelOpt MXFP4
  exponent = ceil(log2(amax / 6)), at least -127: nothing saturates. Ties go toward zero, not to even, and the sign bit is
  x <= 0: a zero gets code 8.
FP8 per tensor, ModelOpt
  scale = amax / 448 for every linear by itself: q/k/v and gate/up keep their own. The exporter divides in the dtype of the
  weight, so code = e4m3(r(w / scale)) is rounded twice; encode-fp8-tensor is the class behind it, fed with FP32: once.
FP8 per channel, compressed-tensors
  scale = r(amax_row / 448) stored [out,1] in the dtype of the weight; code = e4m3(r(w / scale)).
"""
import importlib.util, json, pathlib, shutil, sys, warnings
import numpy as np
import torch

warnings.filterwarnings("ignore")
import transformers as T
from safetensors.torch import load_file, save_file
from compressed_tensors.compressors import BaseCompressor, ModelCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization import preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
import modelopt.torch.quantization as mtq
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.quant_utils import pack_int4_in_uint8
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP4QTensor, MXFP8QTensor, NVFP4QTensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

torch.set_grad_enabled(False)
torch.set_num_threads(1)
T.utils.logging.disable_progress_bar()
GEN = torch.Generator().manual_seed(48096)
OUT, IN = 48, 96
FP8 = torch.float8_e4m3fn


def save(folder, name, **tensors):
    path = folder / f"{name}.safetensors"
    save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()}, path)
    path.chmod(0o644)
    print(f"{path.name:40} {path.stat().st_size}")


def scheme(preset):
    return preset_name_to_scheme(preset, ["Linear"])


def rand_bytes(*shape, low=0, high=256):
    return torch.randint(low, high, shape, dtype=torch.uint8, generator=GEN)


def e2m1(packed):
    """Codes of a packed matrix as FP32, with the sign of zero kept."""
    return unpack_fp4_from_uint8(packed, packed.shape[0], packed.shape[1] * 2, dtype=torch.float32)


def e8m0(b):
    return b.view(torch.float8_e8m0fnu).double()


def spread(scale, block):
    return scale.repeat_interleave(block, dim=-1)


# ---------------------------------------------------------------- decoders

def codes(out):
    b = torch.arange(256).to(torch.uint8)
    # Code 8 is minus zero here and in torch; ModelOpt's own table has plus zero there.
    save(out, "codes", e2m1=e2m1(b[:, None]), e4m3=b.view(FP8).float(), e5m2=b.view(torch.float8_e5m2).float(),
         e8m0=b.view(torch.float8_e8m0fnu).float())


def decode(out):
    packed, s8 = rand_bytes(OUT, IN // 2), rand_bytes(OUT, IN // 16, high=0x7F).view(FP8)  # no sign, no NaN
    g = torch.tensor(0.00034567)
    lib = NVFP4QTensor((OUT, IN), torch.float32, packed).dequantize(torch.float32, scale=s8, double_scale=g, block_sizes={-1: 16})
    save(out, "decode-nvfp4-modelopt", weight=packed, weight_scale=s8, weight_scale_2=g, expected=lib,
         exact=e2m1(packed).double() * spread(s8.double(), 16) * g.double())

    G = torch.tensor([2893.25])
    lib = dequantize(e2m1(packed), s8.float(), args=scheme("NVFP4A16").weights, global_scale=G, dtype=torch.float32)
    save(out, "decode-nvfp4-ct", weight_packed=packed, weight_scale=s8, weight_global_scale=G, expected=lib,
         exact=e2m1(packed).double() * spread(s8.double(), 16) / G.double())

    e = rand_bytes(OUT, IN // 32, low=90, high=160)
    e[0, 0], e[1, 0] = 3, 250  # the ends of the range, still exact in FP32
    lib = dequantize(e2m1(packed), torch.exp2(e.float() - 127), args=scheme("MXFP4A16").weights, dtype=torch.float32)
    save(out, "decode-mxfp4-ct", weight_packed=packed, weight_scale=e, expected=lib,
         exact=e2m1(packed).double() * spread(e8m0(e), 32))

    w = rand_bytes(OUT, IN)
    w[(w & 0x7F) == 0x7F] = 0x38  # NaN codes have no place in a weight
    w = w.view(FP8)
    s = torch.tensor(0.0012555803)
    save(out, "decode-fp8-tensor", weight=w, weight_scale=s,
         expected=FP8QTensor((OUT, IN), torch.float32, w).dequantize(torch.float32, scale=s), exact=w.double() * s.double())
    sb = (torch.rand(OUT, 1, generator=GEN) * 0.01 + 1e-4).bfloat16()
    save(out, "decode-fp8-ct-channel", weight=w, weight_scale=sb, exact=w.double() * sb.double(),
         expected=dequantize(w, sb.float(), args=scheme("FP8_DYNAMIC").weights, dtype=torch.float32))
    sf = torch.rand(OUT, generator=GEN) * 0.01 + 1e-4
    save(out, "decode-fp8-modelopt-channel", weight=w, weight_scale=sf, exact=w.double() * sf[:, None].double(),
         expected=w.float() * sf[:, None])


# Formats whose scales lie in a grid or in groups.  `expected` is F32 as the library computes it: every product is one rounding
# of an exact one, so there is nothing else to compare with.  A generator of their own leaves the other files' bytes alone.

GEN2 = torch.Generator().manual_seed(60417)


def rand(*shape, low=0, high=256):
    return torch.randint(low, high, shape, generator=GEN2)


def e4m3_codes(*shape):
    w = rand(*shape).to(torch.uint8)
    w[(w & 0x7F) == 0x7F] = 0x38
    return w.view(FP8)


def ct_args(preset, **changes):
    return scheme(preset).weights.model_copy(update=changes)


def decode_grids(out):
    # compressed-tensors handles partial edge blocks; transformers and ModelOpt do not, and are asked where all are whole.
    w, s = e4m3_codes(50, 70), torch.rand(4, 3, generator=GEN2) * 0.01 + 1e-4
    for name, scale in ("f32", s), ("bf16", s.bfloat16()), ("f16", s.half()):
        lib = dequantize(w, scale.float(), args=ct_args("FP8_BLOCK", block_structure=[16, 32]), dtype=torch.float32)
        save(out, f"decode-fp8-block-{name}", weight=w, weight_scale_inv=scale, expected=lib)
    w, e = e4m3_codes(OUT, IN), rand(3, 3, low=100, high=140).to(torch.uint8).view(torch.float8_e8m0fnu)
    lib = Fp8Dequantize(None)._dequantize_one(w, e, output_dtype=torch.float32)
    save(out, "decode-fp8-block-e8m0", weight=w, weight_scale_inv=e, expected=lib)
    s = torch.rand(3, 3, generator=GEN2) * 0.01 + 1e-4
    lib = FP8QTensor((OUT, IN), torch.float32, w).dequantize(torch.float32, scale=s, block_sizes={-1: 32, -2: 16})
    save(out, "decode-fp8-block-modelopt", weight=w, weight_scale=s[:, None, :, None], expected=lib)

    e = rand(OUT, IN // 32, low=90, high=160).to(torch.uint8)
    e[0, 0], e[1, 0] = 0, 246  # the ends of the range
    lib = MXFP8QTensor((OUT, IN), torch.float32, w).dequantize(torch.float32, scale=e)
    save(out, "decode-mxfp8", weight=w, weight_scale=e, expected=lib)
    packed, e = rand(OUT, IN // 2).to(torch.uint8), rand(OUT, IN // 32, low=90, high=160).to(torch.uint8)
    # transformers decodes code 8 to plus zero; the codes have none, so that bits can be compared.
    packed[(packed & 15) == 8] ^= 8
    packed[(packed >> 4) == 8] &= 15
    i8, e8 = packed.view(torch.int8), e.view(torch.float8_e8m0fnu)
    lib = Fp8Dequantize(None)._dequantize_one(i8, e8, output_dtype=torch.float32)
    save(out, "decode-fp4-deepseek", weight=i8, scale=e8, expected=lib)


def ct_unpacked(t, args):
    """dequantize() of what is packed; scales as FP32, so that products are not rounded to the scales' dtype."""
    shape = t["weight_shape"].tolist()
    q = unpack_from_int32(t["weight_packed"], args.num_bits, torch.Size(shape))
    z = t.get("weight_zero_point")
    if z is not None:
        z = unpack_from_int32(z, args.num_bits, torch.Size([shape[0], t["weight_scale"].shape[-1]]), packed_dim=0).float()
    return dequantize(q, t["weight_scale"].float(), zero_point=z, args=args, dtype=torch.float32)


def decode_integers(out):
    for bits in 4, 8:
        lo, hi = -(1 << bits - 1), 1 << bits - 1
        q = rand(OUT, IN, low=lo, high=hi).to(torch.int8)
        t = dict(weight_packed=pack_to_int32(q, bits), weight_shape=torch.tensor([OUT, IN]),
                 weight_scale=(torch.rand(OUT, IN // 32, generator=GEN2) * 0.01 + 1e-4).bfloat16())
        save(out, f"decode-int{bits}-packed", **t, expected=ct_unpacked(t, ct_args("W4A16", num_bits=bits, group_size=32)))
        t["weight_zero_point"] = pack_to_int32(rand(OUT, IN // 32, low=lo, high=hi).to(torch.int8), bits, packed_dim=0)
        args = ct_args("W4A16", num_bits=bits, group_size=32, symmetric=False)
        save(out, f"decode-int{bits}-packed-zeros", **t, expected=ct_unpacked(t, args))
    # Rows and columns that do not fill words, one scale a row in FP32.
    q = rand(45, 93, low=-8, high=8).to(torch.int8)
    t = dict(weight_packed=pack_to_int32(q, 4), weight_shape=torch.tensor([45, 93]),
             weight_scale=torch.rand(45, 1, generator=GEN2) * 0.01 + 1e-4,
             weight_zero_point=pack_to_int32(rand(45, 1, low=-8, high=8).to(torch.int8), 4, packed_dim=0))
    args = ct_args("W4A16", strategy="channel", group_size=None, symmetric=False)
    save(out, "decode-int4-packed-ragged", **t, expected=ct_unpacked(t, args))
    w, s = rand(OUT, IN, low=-128, high=128).to(torch.int8), torch.rand(OUT, 1, generator=GEN2) * 0.01 + 1e-4
    save(out, "decode-int8", weight=w, weight_scale=s, expected=dequantize(w, s, args=scheme("W8A8").weights, dtype=torch.float32))

    # ModelOpt has a packer and no unpacker: it packs multiples of the scales, and what it packed is what must come back.
    q, s = rand(OUT, IN, low=-8, high=8).float(), torch.exp2(rand(OUT, IN // 32, low=-9, high=-3).float())
    value = q * s.repeat_interleave(32, -1)
    s3 = s * 1.37  # decoding is linear in the scale
    save(out, "decode-int4-modelopt", weight=pack_int4_in_uint8(value, s, 32), weight_scale=s3,
         expected=q * s3.repeat_interleave(32, -1))


def words(*shape):
    return rand(*shape, low=-(1 << 31), high=1 << 31).to(torch.int32)


def decode_awq(out):
    """qweight and qzeros are random words; compressed-tensors' AutoAWQ converter unpacks them."""
    t = dict(qweight=words(IN, OUT // 8), qzeros=words(IN // 32, OUT // 8),
             scales=(torch.rand(IN // 32, OUT, generator=GEN2) * 0.01 + 1e-4).half())
    conv = AutoAWQConverter.__new__(AutoAWQConverter)
    conv.bits, conv.zero_point = 4, True
    q, s, z = conv._convert_gemm_module(t["qweight"], t["scales"], t["qzeros"])
    args = ct_args("W4A16", group_size=32, symmetric=False)
    save(out, "decode-awq", **t, expected=dequantize(q, s.float(), zero_point=z.float(), args=args, dtype=torch.float32))


def decode_gptq(out):
    """AutoGPTQ's own layer multiplies the unit matrix.  It takes field 15 (255) of a v1 zero point for 16 (256), later libraries
    for 0, as the quantizer meant it: not in the goldens.  v2 is v1 with 1 added to each field."""
    path = importlib.util.find_spec("auto_gptq").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("qlinear", path + "/nn_modules/qlinear/qlinear_cuda.py")
    qlinear = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(qlinear)
    out_f, groups = 64, IN // 32
    for bits in 4, 8:
        top, per = (1 << bits) - 1, 32 // bits
        fields = rand(groups, out_f, high=top).long()

        def pack(f):
            w = sum(f.unflatten(-1, (-1, per))[..., k] << bits * k for k in range(per))
            return torch.where(w >= 1 << 31, w - (1 << 32), w).to(torch.int32)

        t = dict(qweight=words(IN * bits // 32, out_f), scales=(torch.rand(groups, out_f, generator=GEN2) * 0.01 + 1e-4).half(),
                 qzeros=pack(fields), g_idx=(torch.arange(IN) // 32).int()[torch.randperm(IN, generator=GEN2)])
        m = qlinear.QuantLinear(bits, 32, IN, out_f, False, weight_dtype=torch.float32)
        m.load_state_dict({**t, "scales": t["scales"].float()})
        save(out, f"decode-gptq{bits}-v1", **t, expected=m(torch.eye(IN)).T)
        save(out, f"decode-gptq{bits}-v2", **{**t, "qzeros": pack(fields + 1)}, expected=m(torch.eye(IN)).T)


# ---------------------------------------------------------------- encoders

def ct_quantize(w, sch, global_scale=None):
    """compressed-tensors' scales from min/max, in the weight's own dtype as llm-compressor's observer has them."""
    args = sch.weights
    block = args.group_size or w.shape[-1]
    b = w.unflatten(-1, (-1, block))
    lo, hi = b.amin(-1), b.amax(-1)
    sd = {"weight": w}
    if args.strategy == "tensor_group":
        if global_scale is None:
            m = w.abs().max().reshape(1)
            global_scale = generate_gparam(-m, m)
        sd["weight_global_scale"] = global_scale
    sd["weight_scale"], _ = calculate_qparams(lo, hi, args, global_scale=global_scale)
    return sd


def ct_compress(w, preset, fmt):
    sch = scheme(preset)
    return BaseCompressor.get_value_from_registry(fmt).compress(ct_quantize(w, sch), sch)


def encoder_input():
    w = torch.randn(OUT, IN, generator=GEN) * torch.exp(torch.randn(OUT, 1, generator=GEN)) * 0.05
    w[5, 0:32] = 0            # a block of zeros
    w[5, 32:64] *= 2 ** -40   # a block whose scale underflows
    w[6, ::7] = -0.0          # minus zeros
    w[7, 0:32] = torch.arange(32) * 0.25 - 4        # quarter steps: ties between codes, for a power of two scale
    w[8, 0:32] = torch.linspace(0, 1.75, 32)        # amax with mantissa 1.75: the MX exponent rule turns here
    w[8, 32:64] = torch.linspace(0, 1.7421875, 32)  # and one BF16 step below it
    w[9, 0:32] = torch.linspace(-6, 6, 32)
    w[10, 3] = 9.5            # the largest: sets the global scale
    return w.bfloat16()


def encode(out):
    w = encoder_input()
    q, s, s2 = NVFP4QTensor.quantize(w.clone(), 16)
    save(out, "encode-nvfp4-modelopt", input=w, weight=q._quantized_data, weight_scale=s, weight_scale_2=s2)
    save(out, "encode-nvfp4-ct", input=w, **ct_compress(w, "NVFP4A16", "nvfp4-pack-quantized"))
    save(out, "encode-nvfp4-ct-f32", input=w, **ct_compress(w.float(), "NVFP4A16", "nvfp4-pack-quantized"))
    save(out, "encode-mxfp4-ct", input=w, **ct_compress(w, "MXFP4A16", "mxfp4-pack-quantized"))
    q, s = MXFP4QTensor.quantize(w.clone(), 32)
    save(out, "encode-mxfp4-modelopt", input=w, weight=q._quantized_data, weight_scale=s.view(OUT, IN // 32))
    save(out, "encode-fp8-ct-channel", input=w, **ct_compress(w, "FP8_DYNAMIC", "float-quantized"))
    q, s = FP8QTensor.quantize(w.float())
    save(out, "encode-fp8-tensor", input=w, weight=q._quantized_data, weight_scale=s.reshape(()))


# ---------------------------------------------------------------- whole checkpoints

def decoded(tensors):
    """Exact weights of a checkpoint's state dict: FP64 products rounded once to FP32."""
    out = {}
    for k, t in tensors.items():
        p = k.rsplit(".", 1)[0]
        if k.endswith(".weight_packed"):
            s = tensors[p + ".weight_scale"]
            if t.dtype == torch.int32:
                q = unpack_from_int32(t, 4, torch.Size(tensors[p + ".weight_shape"].tolist()))
                w = q.double() * spread(s.double(), q.shape[-1] // s.shape[-1])
            elif s.dtype == torch.uint8:
                w = e2m1(t).double() * spread(e8m0(s), 32)
            else:
                w = e2m1(t).double() * spread(s.double(), 16) / tensors[p + ".weight_global_scale"].double()
        elif k.endswith(".weight") and t.dtype == torch.uint8:
            w = e2m1(t).double() * spread(tensors[p + ".weight_scale"].double(), 16) * tensors[p + ".weight_scale_2"].double()
        elif k.endswith(".weight") and p + ".weight_scale_inv" in tensors:
            s = tensors[p + ".weight_scale_inv"].double()
            w = t.double() * spread(spread(s, BLOCK).T, BLOCK).T[:t.shape[0], :t.shape[1]]
        elif k.endswith(".weight") and t.dtype == FP8:
            w = t.double() * tensors[p + ".weight_scale"].double()
        elif k.endswith(".weight"):
            w = t.double()
        else:
            continue
        out[p + ".weight"] = w.float()
    return out


def finish(folder, base):
    """Puts ids.npy and logits.npy beside a checkpoint."""
    m = T.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    m.load_state_dict(decoded(load_file(folder / "model.safetensors")), strict=True)
    ids = np.load(base / "ids.npy")
    logits = m(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0].numpy()
    shutil.copy(base / "ids.npy", folder)
    np.save(folder / "logits.npy", logits)
    p, q = (torch.from_numpy(x).double().log_softmax(-1) for x in (np.load(base / "logits.npy"), logits))
    kl = (p.exp() * (p - q)).sum(-1).mean()
    for f in folder.iterdir():
        f.chmod(0o644)
    print(f"{folder.name:24} {sum(f.stat().st_size for f in folder.iterdir()) / 1024:5.0f} KiB  mean KL to base {kl:.4f}")


def load_base(base):
    return T.AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def modelopt_checkpoint(folder, base, cfg):
    ids = torch.from_numpy(np.load(base / "ids.npy"))[None]
    m = mtq.quantize(load_base(base), cfg, forward_loop=lambda m: m(ids))
    export_hf_checkpoint(m, export_dir=fresh(folder))
    finish(folder, base)


FUSED = [("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")]


def ct_checkpoint(folder, base, preset, **weights):
    m = load_base(base)
    group = scheme(preset)
    group.weights = group.weights.model_copy(update=weights)
    cfg = QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head"])
    apply_quantization_config(m, cfg)
    linears = {n: x for n, x in m.named_modules() if getattr(x, "quantization_scheme", None)}
    group = {n: [n] for n in linears}
    for n in linears:
        for f in FUSED:
            hit = next((s for s in f if n.endswith(s)), None)
            if hit:
                group[n] = [n.removesuffix(hit) + s for s in f]
    amax_in = {}
    hooks = [x.register_forward_pre_hook(lambda mod, a, n=n: amax_in.__setitem__(n, a[0].abs().max())) for n, x in linears.items()]
    for x in linears.values():
        x.quantization_enabled = False
    m(input_ids=torch.from_numpy(np.load(base / "ids.npy"))[None], use_cache=False)
    for h in hooks:
        h.remove()

    def shared(amax):
        v = torch.stack(amax).max().reshape(1)
        return generate_gparam(-v, v)

    for n, x in linears.items():
        G = shared([linears[o].weight.abs().max() for o in group[n]]) if hasattr(x, "weight_global_scale") else None
        for k, v in ct_quantize(x.weight.data, x.quantization_scheme, G).items():
            if k != "weight":
                setattr(x, k, torch.nn.Parameter(v, requires_grad=False))
        if hasattr(x, "input_global_scale"):
            x.input_global_scale.data = shared([amax_in[o] for o in group[n]])
    comp = ModelCompressor.from_pretrained_model(m)
    comp.compress_model(m)
    fresh(folder)
    save_file({k: v.contiguous() for k, v in m.state_dict().items()}, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(base / "config.json", folder)
    comp.update_config(folder)
    finish(folder, base)


BLOCK = 32  # of the FP8 block checkpoint: smaller than usual, so that small matrices have several


def fp8_block_checkpoint(folder, base):
    """Linear layers of the body as transformers' fp8 has them: scale = amax / 448 of each block, codes = e4m3(w / scale)."""
    tensors = load_file(base / "model.safetensors")
    for k in [k for k in tensors if k.endswith("_proj.weight")]:
        w = tensors[k].float()
        rows, cols = w.shape
        w = torch.nn.functional.pad(w, (0, -cols % BLOCK, 0, -rows % BLOCK)).unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
        s = w.abs().amax((1, 3)) / 448
        tensors[k] = (w / s[:, None, :, None]).to(FP8).flatten(2, 3).flatten(0, 1)[:rows, :cols].contiguous()
        tensors[k + "_scale_inv"] = s
    save_file(tensors, fresh(folder) / "model.safetensors", metadata={"format": "pt"})
    cfg = json.loads((base / "config.json").read_text())
    cfg["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                  "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    finish(folder, base)


def checkpoints(models):
    base = models / "qwen3-base"
    modelopt_checkpoint(models / "qwen3-nvfp4-modelopt", base, mtq.NVFP4_DEFAULT_CFG)
    modelopt_checkpoint(models / "qwen3-fp8-modelopt", base, mtq.FP8_DEFAULT_CFG)
    ct_checkpoint(models / "qwen3-nvfp4-ct", base, "NVFP4")
    ct_checkpoint(models / "qwen3-mxfp4-ct", base, "MXFP4A16")
    ct_checkpoint(models / "qwen3-fp8-ct-channel", base, "FP8_DYNAMIC")
    ct_checkpoint(models / "qwen3-int4-ct", base, "W4A16", group_size=32)
    fp8_block_checkpoint(models / "qwen3-fp8-block", base)
    # The same tensors as ModelOpt's, under the older description with quant_method fp8.
    src, dst = models / "qwen3-fp8-modelopt", fresh(models / "qwen3-fp8-tensor")
    shutil.copy(src / "model.safetensors", dst)
    cfg = json.loads((src / "config.json").read_text())
    cfg["quantization_config"] = {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"}
    (dst / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    finish(dst, base)


if __name__ == "__main__":
    golden = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "golden")
    q = fresh(golden / "quant")
    codes(q)
    decode(q)
    encode(q)
    decode_grids(q)
    decode_integers(q)
    decode_awq(q)
    decode_gptq(q)
    checkpoints(golden / "models")
