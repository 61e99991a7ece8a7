# One non-recursive Makefile.  `make help` lists the targets.
MAKEFLAGS += -rR --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

CC      ?= cc
ifeq ($(origin CC),default)
CC      := cc
endif
PREFIX  ?= /usr/local
NVCC    ?= $(shell command -v nvcc 2>/dev/null)
CUDA    ?= $(if $(wildcard logits/cuda/*.cu),$(if $(NVCC),1,0),0)
# SAN=address,undefined builds with sanitizers into a directory of its own.
SAN     ?=
V       ?=
Q       := $(if $(V),,@)
comma   := ,

MODE := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)-cuda$(CUDA)
B    := build/$(MODE)

CSTD := -std=c17 -D_POSIX_C_SOURCE=200809L -ffp-contract=off -fno-fast-math
WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        -Wundef -Wformat=2 -Wcast-qual $(if $(CI),-Werror)
OPT  := $(if $(SAN),-O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all,-O3 -g)
INC  := -I. $(shell pkg-config --cflags openblas 2>/dev/null)
LIBS := -lopenblas -lzstd -lcrypto -ljansson -lpcre2-8 -lutf8proc -lm -lpthread

LIB_SRC  := $(sort $(wildcard kld/base/*.c kld/store/*.c loaders/*.c datasets/*.c logits/*.c \
              logits/cpu/*.c kld/capture/*.c kld/compare/*.c))
CLI_SRC  := $(sort $(wildcard kld/cli/*.c))
TEST_SRC := $(sort $(wildcard tests/unit/test_*.c))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
LIB_OBJ  := $(LIB_SRC:%.c=$(B)/obj/%.o)
CLI_OBJ  := $(CLI_SRC:%.c=$(B)/obj/%.o)
TEST_BIN := $(TEST_SRC:tests/unit/%.c=$(B)/bin/%)
FUZZ_BIN := $(FUZZ_SRC:tests/fuzz/%.c=$(B)/bin/%)
TEST_HELP := $(filter-out $(TEST_SRC),$(wildcard tests/unit/*.c))
TEST_HELP_OBJ := $(TEST_HELP:%.c=$(B)/obj/%.o)

.PHONY: all
all: build/kld

$(B)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(CSTD) $(WARN) $(OPT) -fopenmp $(INC) -MMD -MP $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(B)/libkld.a: $(LIB_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/bin/kld: $(CLI_OBJ) $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ $(LIBS)

build/kld: $(B)/bin/kld
	$(Q)ln -sfn $(MODE)/bin/kld $@

$(B)/bin/test_%: $(B)/obj/tests/unit/test_%.o $(TEST_HELP_OBJ) $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

$(B)/bin/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/driver.o $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(wildcard $(B)/obj/*/*.d $(B)/obj/*/*/*.d)

.SECONDARY:

.PHONY: clean
clean:
	rm -rf build
