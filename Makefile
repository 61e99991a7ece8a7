# One non-recursive Makefile.  `make help` lists the targets.
MAKEFLAGS += -rR --no-print-directory
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := all

# A sub-make inherits -R and has no default CC at all.
ifneq (,$(filter default undefined,$(origin CC)))
CC := gcc
endif
PREFIX  ?= /usr/local
DESTDIR ?=
NVCC    ?= $(shell command -v nvcc 2>/dev/null)
# CUDA is built when there is a compiler for it and there are sources to compile.
CUDA    ?= $(if $(wildcard logits/cuda/*.cu),$(if $(NVCC),1,0),0)
# SAN=address,undefined builds with sanitizers, in a directory of its own.
SAN     ?=
ifneq ($(SAN),)
override CUDA := 0
endif
V       ?=
Q       := $(if $(V),,@)
comma   := ,

MODE := $(if $(SAN),san-$(subst $(comma),-,$(SAN)),release)-cuda$(CUDA)
B    := build/$(MODE)

CSTD := -std=c17 -D_XOPEN_SOURCE=700 -ffp-contract=off -fno-fast-math
WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla \
        -Wundef -Wformat=2 -Wcast-qual $(if $(CI),-Werror)
OPT  := $(if $(SAN),-O1 -g -fno-omit-frame-pointer -fsanitize=$(SAN) -fno-sanitize-recover=all,-O3 -g)
LIBS := -lopenblas -lzstd -lcrypto -ljansson -lpcre2-8 -lutf8proc -lsqlite3 -lm -lpthread -ldl

# Machine code for these, and PTX of the last for whatever comes later.
GENCODE   ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 \
             -gencode arch=compute_120,code=sm_120 -gencode arch=compute_120,code=compute_120
NVCCFLAGS ?= -std=c++17 -O3 -lineinfo -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers,-fPIC,-fvisibility=hidden
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_SRC  := $(sort $(wildcard logits/cuda/*.cu))
CUDA_OBJ  := $(CUDA_SRC:%.cu=$(B)/obj/%.o)
# What the CUDA back end uses of the lower floors: its own copies, for it is loaded by itself.
CUDA_PIC  := $(patsubst %,$(B)/pic/%.o,kld/base/status kld/base/mem kld/base/thread kld/base/version \
               loaders/actquant)
CUDA_SO   := $(if $(filter 1,$(CUDA)),$(B)/bin/kld-cuda.so)

LIB_SRC   := $(sort $(wildcard kld/base/*.c kld/store/*.c loaders/*.c datasets/*.c logits/*.c \
               logits/cpu/*.c kld/capture/*.c kld/compare/*.c kld/nightly/*.c))
CLI_SRC   := $(sort $(wildcard kld/cli/*.c))
TEST_SRC  := $(sort $(wildcard tests/unit/test_*.c))
FUZZ_SRC  := $(sort $(wildcard tests/fuzz/fuzz_*.c))
HELP_SRC  := $(filter-out $(TEST_SRC),$(sort $(wildcard tests/unit/*.c)))
LIB_OBJ   := $(LIB_SRC:%.c=$(B)/obj/%.o)
CLI_OBJ   := $(CLI_SRC:%.c=$(B)/obj/%.o)
HELP_OBJ  := $(HELP_SRC:%.c=$(B)/obj/%.o)
TEST_OBJ  := $(TEST_SRC:%.c=$(B)/obj/%.o)
TEST_BIN  := $(TEST_SRC:tests/unit/%.c=$(B)/bin/%)
FUZZ_BIN  := $(FUZZ_SRC:tests/fuzz/%.c=$(B)/bin/%)
CLI_TESTS := $(sort $(wildcard tests/cli/*.sh))

# Targets that set everything up may install packages; the others only say what is missing.
SETUP     := $(filter demo check check-report san fuzz-regress lint fuzz man,$(MAKECMDGOALS))
DEPS_MODE := $(if $(SETUP),install,check)

.PHONY: all
all: build/kld $(CUDA_SO) ## build the program (build/kld), with CUDA when there is nvcc

build/.deps.%: .ci/deps
	@mkdir -p build
	@.ci/deps $(DEPS_MODE) $*
	@touch $@

COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
build/.commit: FORCE
	@mkdir -p build
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' >$@
.PHONY: FORCE
FORCE:
$(B)/obj/kld/base/version.o $(B)/pic/kld/base/version.o: CPPFLAGS += -DKLD_COMMIT='"$(COMMIT)"'
$(B)/obj/kld/base/version.o $(B)/pic/kld/base/version.o: build/.commit

# Chart.js of Debian, for the HTML report.  What assets.c includes is read by the assembler, which
# tells nobody.
CHART_JS ?= /usr/share/javascript/chart.js/chart.min.js
$(B)/obj/kld/compare/assets.o: CPPFLAGS += -DKLD_CHART_JS='"$(CHART_JS)"'
$(B)/obj/kld/compare/assets.o: $(wildcard kld/compare/report/*) $(CHART_JS)
$(CHART_JS): | build/.deps.build

$(B)/obj/%.o: %.c Makefile | build/.deps.build
	@mkdir -p $(@D)
	$(Q)$(CC) $(CSTD) $(WARN) $(OPT) -fopenmp -I. -MMD -MP $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(B)/pic/%.o: %.c Makefile | build/.deps.build
	@mkdir -p $(@D)
	$(Q)$(CC) $(CSTD) $(WARN) $(OPT) -fPIC -fvisibility=hidden -I. -MMD -MP $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(B)/obj/%.o: %.cu Makefile | build/.deps.build
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVCCFLAGS) $(GENCODE) -I. -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(B)/bin/kld-cuda.so: $(CUDA_OBJ) $(CUDA_PIC)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -shared -cudart static -o $@ $^ -L$(CUDA_HOME)/lib64 -lcublasLt \
	  -Xlinker --no-undefined,-rpath,'$$ORIGIN',-rpath,$(CUDA_HOME)/lib64

$(TEST_OBJ) $(HELP_OBJ): | build/.deps.test

$(B)/libkld.a: $(LIB_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

# An archive, so that a test takes only the helpers it uses.
$(B)/libtest.a: $(HELP_OBJ)
	$(Q)rm -f $@ && ar rcs $@ $^

$(B)/bin/kld: $(CLI_OBJ) $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ $(LIBS)

build/kld: $(B)/bin/kld
	$(Q)ln -sfn $(MODE)/bin/kld $@

$(B)/bin/test_%: $(B)/obj/tests/unit/test_%.o $(B)/libtest.a $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

$(B)/bin/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/driver.o $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ $(LIBS)

-include $(wildcard $(B)/obj/*/*.d $(B)/obj/*/*/*.d $(B)/pic/*/*.d $(B)/pic/*/*/*.d)

# ---- tests -------------------------------------------------------------------------
# KLD_BIN tells the command-line tests which program to run.
.PHONY: check
check: $(TEST_BIN) $(B)/bin/kld build/kld $(CUDA_SO) ## all tests (no GPU, Python or network needed)
	@KLD_BIN=$(B)/bin/kld tests/run $(TEST_BIN) $(CLI_TESTS)

.PHONY: check-report
check-report: $(B)/bin/kld build/kld | build/.deps.test build/.deps.report ## the HTML report in a headless browser
	@KLD_BIN=$(B)/bin/kld tests/run tests/real/report.sh

GPU_SRC := $(sort $(wildcard tests/gpu/test_*.c))
GPU_BIN := $(GPU_SRC:tests/gpu/%.c=$(B)/bin/%)
GPU_SH  := $(sort $(wildcard tests/gpu/*.sh))
$(GPU_SRC:%.c=$(B)/obj/%.o) $(B)/obj/tests/gpu/gpukit.o: | build/.deps.test
$(B)/bin/test_gpu_%: $(B)/obj/tests/gpu/test_gpu_%.o $(B)/obj/tests/gpu/gpukit.o $(B)/libtest.a $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

$(B)/bin/synth: $(B)/obj/tests/bench/synth.o $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ $(LIBS)

$(B)/bin/coverage: $(B)/obj/tests/sim/coverage.o $(B)/libtest.a $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

RUNS ?= 1000
.PHONY: coverage
coverage: $(B)/bin/coverage ## how often intervals hold the truth (docs/statistics.md; some minutes)
	@for s in documents strata overlap heavy; do \
	  $(B)/bin/coverage $(RUNS) 1999 $$s 2 3 6 8 12 20 30 50 100 && \
	  $(B)/bin/coverage $$(($(RUNS) / 5)) 1999 $$s 800 || exit; done

# make synth SIZE=8b FORMAT=nvfp4
SIZE   ?= 8b
FORMAT ?= bf16
OUT    ?= build/synth/$(SIZE)-$(FORMAT)
.PHONY: synth
synth: $(B)/bin/synth ## a checkpoint of SIZE (1b, 8b, 70b) and FORMAT (bf16, nvfp4, mxfp4) with random weights
	@mkdir -p $(dir $(OUT))
	$(B)/bin/synth $(SIZE) $(FORMAT) $(OUT)

$(B)/bin/captures: $(B)/obj/tests/bench/captures.o $(B)/libtest.a $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

# make bench-compare POSITIONS=500000
POSITIONS ?= 500000
.PHONY: bench-compare
bench-compare: $(B)/bin/captures build/kld ## time and memory of reading and comparing two captures of POSITIONS full lists
	@[ -f build/captures-$(POSITIONS)/cand.zst ] || $(B)/bin/captures $(POSITIONS) build/captures-$(POSITIONS)
	tests/bench/compare.sh build/kld build/captures-$(POSITIONS)

# Kernels by themselves are timed where there are any.
ifeq ($(CUDA),1)
BENCH_OBJ  := $(patsubst %,$(B)/obj/%.o,tests/bench/kernels logits/cuda/head_kernel logits/cuda/pair_kernel)
BENCH_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -lrt -lstdc++
endif
$(B)/obj/tests/bench/bench.o: CPPFLAGS += -DBENCH_KERNELS=$(CUDA)
$(B)/bin/bench: $(B)/obj/tests/bench/bench.o $(BENCH_OBJ) $(B)/libkld.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(OPT) -fopenmp $(LDFLAGS) -o $@ $^ $(BENCH_LIBS) $(LIBS)

DEVICE ?= auto
ONLY   ?=
.PHONY: bench
bench: $(B)/bin/bench $(CUDA_SO) ## time the operations on DEVICE (auto, cpu, cuda:N): one JSON line each
	@$(B)/bin/bench $(DEVICE) $(ONLY)

.PHONY: gpu-tests check-gpu san-gpu
gpu-tests: $(B)/bin/bench $(B)/bin/synth $(GPU_BIN) $(B)/bin/kld build/kld $(CUDA_SO)
check-gpu: gpu-tests ## the tests that need a CUDA card
	@KLD_BIN=$(B)/bin/kld tests/run $(GPU_BIN) $(GPU_SH)
san-gpu: gpu-tests ## the same under compute-sanitizer (memcheck, racecheck), with small problems
	@tests/gpu/sanitize $(GPU_BIN)

.PHONY: san
ifeq ($(SAN),)
san: ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) SAN=address,undefined san
else
san: $(TEST_BIN) $(B)/bin/kld
	@ASAN_OPTIONS=allocator_may_return_null=1 KLD_BIN=$(B)/bin/kld tests/run $(TEST_BIN) $(CLI_TESTS)
endif

.PHONY: fuzz-regress
ifeq ($(SAN),)
fuzz-regress: ## every fuzz target over its committed corpus, with sanitizers
	@$(MAKE) SAN=address,undefined fuzz-regress
else
fuzz-regress: $(FUZZ_BIN)
	@set -e; for t in $(FUZZ_BIN); do \
	  ASAN_OPTIONS=allocator_may_return_null=1 $$t tests/fuzz/corpus/$$(basename $$t | sed s/^fuzz_//); done
endif

# libFuzzer: make fuzz TARGET=safetensors SECONDS=60
TARGET  ?= safetensors
SECONDS ?= 60
.PHONY: fuzz
fuzz: | build/.deps.build build/.deps.fuzz ## fuzz TARGET for SECONDS with libFuzzer (clang)
	@mkdir -p build/fuzz/$(TARGET)
	$(Q)clang $(CSTD) -g -O1 -fsanitize=fuzzer,address,undefined -I. -DKLD_COMMIT='"fuzz"' \
	  -o build/fuzz/fuzz_$(TARGET) tests/fuzz/fuzz_$(TARGET).c $(filter-out logits/% kld/capture/% kld/nightly/%,$(LIB_SRC)) $(LIBS)
	build/fuzz/fuzz_$(TARGET) -max_total_time=$(SECONDS) -rss_limit_mb=4096 build/fuzz/$(TARGET) tests/fuzz/corpus/$(TARGET)

.PHONY: lint
lint: | build/.deps.build build/.deps.test build/.deps.lint ## format, floors, banned calls, clang-tidy, cppcheck
	@tests/lint/run

.PHONY: format
format: | build/.deps.lint ## reformat the sources
	@git ls-files "*.c" "*.h" "*.cu" "*.cuh" "*.js" | xargs clang-format -i

# ---- demo --------------------------------------------------------------------------
.PHONY: demo
demo: build/kld ## compare NVFP4, MXFP4 and QAD with their BF16 reference on the bundled model
	@datasets/demo/run build/kld build/demo

# ---- installation ------------------------------------------------------------------
build/kld.1: build/kld docs/kld.h2m | build/.deps.man
	$(Q)help2man --no-info --include docs/kld.h2m --output $@ ./build/kld

.PHONY: man
man: build/kld.1 ## the manual page (build/kld.1)

.PHONY: install
install: build/kld $(CUDA_SO) ## install the program (and the manual page, if built) under PREFIX
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 755 $(B)/bin/kld $(DESTDIR)$(PREFIX)/bin/kld
	@if [ -n "$(CUDA_SO)" ]; then install -d $(DESTDIR)$(PREFIX)/lib/kld && \
	  install -m 755 $(CUDA_SO) $(DESTDIR)$(PREFIX)/lib/kld/kld-cuda.so; fi
	@if [ -f build/kld.1 ]; then install -d $(DESTDIR)$(PREFIX)/share/man/man1 && \
	  install -m 644 build/kld.1 $(DESTDIR)$(PREFIX)/share/man/man1/kld.1; fi

.PHONY: clean
clean: ## remove everything that was built
	rm -rf build

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'
