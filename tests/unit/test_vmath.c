/* The CPU back end's vector arithmetic: the exponential against libm's, BF16 rounding against the
 * scalar one's. */
#include "tests/unit/enginekit.h"

#include "loaders/numfmt.h"
#include "logits/cpu/vmath.h"

#include <math.h>

static void exponential(void **state) {
    (void)state;
    double worst = 0;
    for (double x = -87.3; x < 88.3; x += 0.00317) {
        float in[VL], out[VL];
        for (int i = 0; i < VL; i++) in[i] = (float)(x + 0.0001 * i);
        vf v, e;
        vf_load(&v, in);
        vf_exp(&e, &v);
        vf_store(out, &e);
        for (int i = 0; i < VL; i++) {
            double want = exp((double)in[i]);
            int ex;
            (void)frexp(want, &ex);
            double ulp = fabs((double)out[i] - want) / ldexp(1, ex - 24);
            if (ulp > worst) worst = ulp;
        }
    }
    print_message("exp: %.3f ulp\n", worst);
    assert_true(worst <= 2);
    float special[VL] = {-INFINITY, -88, -1000, 0, -0.0f, NAN, 200, INFINITY}, out[VL];
    vf v, e;
    vf_load(&v, special);
    vf_exp(&e, &v);
    vf_store(out, &e);
    assert_true(out[0] == 0 && out[1] == 0 && out[2] == 0 && out[3] == 1 && out[4] == 1);
    assert_true(isnan(out[5]) && out[6] > 2e38f && out[7] > 2e38f);
}

static void rounding(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int k = 0; k < 20000; k++) {
        float in[VL], out[VL];
        for (int i = 0; i < VL; i++) {
            uint32_t u = (uint32_t)(rnd(&seed) * 4294967296.0);
            memcpy(&in[i], &u, 4);
        }
        vf v;
        vf_load(&v, in);
        vf_bf16(&v);
        vf_store(out, &v);
        for (int i = 0; i < VL; i++) {
            float want = kld_bf16_to_f32(kld_f32_to_bf16(in[i]));
            if (isnan(want)) assert_true(isnan(out[i]));
            else assert_memory_equal(&want, &out[i], 4);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(exponential), cmocka_unit_test(rounding)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
