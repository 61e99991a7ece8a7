/* tests/unit/t.h - what every unit test needs: cmocka and a scratch directory. */
#ifndef KLD_TESTS_T_H
#define KLD_TESTS_T_H
/* clang-format off: cmocka wants these four first, in this order */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* clang-format on */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Setup and teardown of a scratch directory; *state is its path. */
int t_dir_make(void **state);
int t_dir_remove(void **state);

/* dir/name in malloc'ed memory. */
char *t_path(const char *dir, const char *name);

#endif
