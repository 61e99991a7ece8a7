#include "loaders/classify_rows.h"

#define BIT(t) (1u << KLD_##t)
enum {
    FLOATS = KLD_DTYPES_FLOAT,
    F32S = BIT(F32),
    INT32S = BIT(I32) | BIT(U32),
    E8M0 = BIT(U8) | BIT(F8_E8M0),
    ANY = KLD_DTYPES_ANY
};

#define INPUT(name)                                                                                \
    { name, FLOATS, KLD_SHAPE_SCALAR, KLD_ROLE_INPUT, true }
/* Calibration leftovers that no consumer reads. */
#define LEFTOVER                                                                                   \
    { "input_max", ANY, KLD_SHAPE_ANY, KLD_ROLE_NONE, true }
/* ModelOpt's AWQ, where it could not be folded into what comes before. */
#define PRE                                                                                        \
    { "pre_quant_scale", FLOATS, KLD_SHAPE_COLS, KLD_ROLE_PRE, true }
#define DATA(name, dtypes, shape)                                                                  \
    { name, dtypes, KLD_SHAPE_##shape, KLD_ROLE_DATA, false }
#define SCALE(name, dtypes, shape)                                                                 \
    { name, dtypes, KLD_SHAPE_##shape, KLD_ROLE_SCALE, false }
#define GLOBAL(name)                                                                               \
    { name, F32S, KLD_SHAPE_SCALAR, KLD_ROLE_GLOBAL, false }
#define OTHER(name, dtypes, role, optional)                                                        \
    { name, dtypes, KLD_SHAPE_ANY, KLD_ROLE_##role, optional }

const kld_format_row kld_format_rows[] = {
    {KLD_FMT_BF16, false, 1, NULL, {DATA("weight", BIT(BF16), FULL)}},
    {KLD_FMT_F16, false, 1, NULL, {DATA("weight", BIT(F16), FULL)}},
    {KLD_FMT_F32, false, 1, NULL, {DATA("weight", BIT(F32), FULL)}},
    {KLD_FMT_NVFP4,
     false,
     16,
     NULL,
     {DATA("weight", BIT(U8), HALF), SCALE("weight_scale", BIT(F8_E4M3), BLOCK16),
      GLOBAL("weight_scale_2"), INPUT("input_scale"), PRE, LEFTOVER}},
    {KLD_FMT_NVFP4,
     true,
     16,
     NULL,
     {DATA("weight_packed", BIT(U8), HALF), SCALE("weight_scale", BIT(F8_E4M3), BLOCK16),
      GLOBAL("weight_global_scale"), INPUT("input_global_scale"), LEFTOVER}},
    {KLD_FMT_MXFP4,
     false,
     32,
     NULL,
     {DATA("weight_packed", BIT(U8), HALF), SCALE("weight_scale", E8M0, BLOCK32),
      INPUT("input_scale"), LEFTOVER}},
    {KLD_FMT_MXFP4, /* ModelOpt, Quark */
     false,
     32,
     NULL,
     {DATA("weight", BIT(U8), HALF), SCALE("weight_scale", E8M0, BLOCK32), INPUT("input_scale"),
      LEFTOVER}},
    {KLD_FMT_FP8_TENSOR,
     false,
     1,
     kld_settle_fp8,
     {DATA("weight", BIT(F8_E4M3), FULL), SCALE("weight_scale", FLOATS | E8M0, ANY),
      INPUT("input_scale"), LEFTOVER}},
    {KLD_FMT_FP8_TENSOR,
     false,
     1,
     kld_settle_fp8,
     {DATA("weight", BIT(F8_E4M3), FULL), SCALE("weight_scale_inv", FLOATS | E8M0, ANY),
      INPUT("input_scale"), INPUT("activation_scale"), LEFTOVER}},
    {KLD_FMT_FP8_TENSOR,
     false,
     1,
     kld_settle_fp8,
     {DATA("weight", BIT(F8_E4M3), FULL), SCALE("scale", FLOATS | E8M0, ANY)}},
    {KLD_FMT_INT8,
     false,
     1,
     kld_settle_int8,
     {DATA("weight", BIT(I8), FULL), SCALE("weight_scale", FLOATS, ANY), INPUT("input_scale"), PRE,
      LEFTOVER}},
    {KLD_FMT_MXFP4, /* DeepSeek-V4 */
     false,
     32,
     NULL,
     {DATA("weight", BIT(I8), HALF), SCALE("scale", BIT(F8_E8M0), BLOCK32)}},
    {KLD_FMT_INT4_PAIRS,
     false,
     1,
     kld_settle_pairs,
     {DATA("weight", BIT(U8), ANY), SCALE("weight_scale", FLOATS, ANY), PRE, LEFTOVER}},
    {KLD_FMT_INT4_PACKED,
     false,
     1,
     kld_settle_packed,
     {DATA("weight_packed", INT32S, ANY), SCALE("weight_scale", FLOATS, ANY),
      OTHER("weight_shape", BIT(I64) | BIT(I32), EXTENT, false),
      OTHER("weight_zero_point", INT32S, ZEROS, true), OTHER("weight_g_idx", BIT(I32), INDEX, true),
      INPUT("input_scale")}},
    {KLD_FMT_GPTQ4, /* or AWQ: the shape of qweight decides */
     false,
     1,
     kld_settle_qweight,
     {DATA("qweight", INT32S, ANY), SCALE("scales", FLOATS, ANY),
      OTHER("qzeros", INT32S, ZEROS, false), OTHER("g_idx", BIT(I32), INDEX, true)}},
};
const size_t kld_n_format_rows = sizeof kld_format_rows / sizeof *kld_format_rows;

const kld_refused_row kld_refused_rows[] = {
    {"NVFP4_SVD (low-rank branch)", "svdquant_lora_a", NULL, ANY, 0},
    {"EXL3", "trellis", NULL, ANY, 0},
    {"INT4 of ModelOpt with a second scale (W4A8_AWQ)", "weight_scale", "weight_scale_2", FLOATS,
     ANY},
    {"a pre_quant_scale of this type or in this format", "pre_quant_scale", NULL, ANY, 0},
    {"bitsandbytes INT8", "weight", "SCB", BIT(I8), ANY},
    {"bitsandbytes 4-bit", "weight.absmax", NULL, ANY, 0},
    {"Marlin's packing", "B", NULL, INT32S, 0},
    {"AWQ gemv_fast", "qweight", NULL, BIT(I16), 0},
    {"FP8 E5M2", "weight", NULL, BIT(F8_E5M2), 0},
    {"FP8 FNUZ", "weight", NULL, BIT(F8_E4M3FNUZ) | BIT(F8_E5M2FNUZ), 0},
    {"a weight with zero points in this format", "weight_zero_point", NULL, ANY, 0},
    {"F64 weights", "weight", NULL, BIT(F64), 0},
};
const size_t kld_n_refused_rows = sizeof kld_refused_rows / sizeof *kld_refused_rows;
