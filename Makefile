# make help lists what you can do here.

GO       ?= go
GOARCH   ?= $(shell $(GO) env GOHOSTARCH)
HOSTARCH := $(shell $(GO) env GOHOSTARCH)

# The C compiler of boxinit: the system's, or the cross compiler of GOARCH.
ifeq ($(origin CC),default)
  ifeq ($(GOARCH),$(HOSTARCH))
    CC := cc
  else
    CC := $(if $(filter arm64,$(GOARCH)),aarch64,$(if $(filter amd64,$(GOARCH)),x86_64,$(GOARCH)))-linux-gnu-gcc
  endif
endif

# boxinit is freestanding: no libc, no start files, no relocations, no
# executable stack. It is PID 1 of a box and must stay small enough to read.
BOXINIT_CFLAGS := -std=gnu11 -Os -static -nostdlib -nostartfiles -ffreestanding \
	-fno-builtin -fno-tree-loop-distribute-patterns -fno-stack-protector -fno-unwind-tables -fno-asynchronous-unwind-tables \
	-fno-pie -no-pie -Wall -Wextra -Werror \
	-Wl,--build-id=none -Wl,-z,noexecstack

BOXINIT_DIR := internal/jail/boxinit
BOXINIT_SRC := $(wildcard $(BOXINIT_DIR)/*.c $(BOXINIT_DIR)/*.h)
BOXINIT     := $(BOXINIT_DIR)/boxinit

.DEFAULT_GOAL := help
.PHONY: help build boxinit deps compat-deps compat demo test vm fmt fmt-check vet lint cross proof attack bench clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: boxinit ## compile bin/hutch and bin/hutchd
	CGO_ENABLED=0 GOARCH=$(GOARCH) $(GO) build -trimpath -ldflags '-s -w' -o bin/ ./cmd/hutch ./cmd/hutchd

boxinit: build/boxinit.$(GOARCH) ## compile the helper that Go embeds
	@cmp -s $< $(BOXINIT) || cp $< $(BOXINIT)

build/boxinit.$(GOARCH): $(BOXINIT_SRC) Makefile
	@mkdir -p build
	$(CC) $(BOXINIT_CFLAGS) -o $@ $(filter %.c,$(BOXINIT_SRC))

deps: ## install what tests and demo need and this machine lacks
	@sh scripts/deps.sh

compat-deps: ## install the large programs that make compat tries
	@sh scripts/deps.sh compat

compat: compat-deps build ## try real programs in a box, and write docs/compatibility.md
	@HUTCH_BIN=$(CURDIR)/bin/hutch $(GO) test -count=1 -timeout 60m ./test/compat $(if $(filter 0,$(shell id -u)),-update)

demo: deps build ## run the main job on a sample workspace
	@sh scripts/demo.sh bin/hutch

test: deps build ## run every test; as root: as root and as an ordinary user
	@$(GO) run ./test/runner $(TESTFLAGS)

fmt: ## format the Go code
	gofmt -s -w $$(git ls-files -co --exclude-standard '*.go')

fmt-check: ## fail where the Go code is not formatted
	@out=$$(gofmt -s -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$out" ]; then echo "not formatted (make fmt):"; echo "$$out"; exit 1; fi

vet: boxinit ## go vet for every system we build for
	GOOS=linux $(GO) vet ./...
	GOOS=linux $(GO) vet -tags vm ./test/vm/...
	GOOS=darwin $(GO) vet ./...
	GOOS=windows $(GO) vet ./...

lint: boxinit build/staticcheck ## staticcheck
	build/staticcheck ./...
	build/staticcheck -tags vm ./test/vm/...

build/staticcheck: tools/go.mod tools/go.sum
	@mkdir -p build
	$(GO) -C tools build -o ../build/staticcheck honnef.co/go/tools/cmd/staticcheck

cross: boxinit ## compile for darwin and windows, vet for linux on arm64
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) build -o build/darwin/ ./cmd/hutch ./cmd/hutchd
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) build -o build/windows/ ./cmd/hutch ./cmd/hutchd
	GOOS=linux GOARCH=arm64 $(GO) vet ./...

proof: compat-deps build ## the tests in their long versions
	@HUTCH_PROOF=1 $(GO) run ./test/runner -timeout 60m $(TESTFLAGS)
	@$(GO) run ./test/crash/vm

attack: deps build ## make every attack, with its guard and without, and print the table
	@$(GO) run ./test/attack/table $(TESTFLAGS)

vm: deps build ## hutch's checks on other kernels, in QEMU
	@$(GO) run ./test/vm $(VMFLAGS)

bench: deps build ## time a cold run, diffs and promotions beside the bare thing
	@$(GO) run ./bench/cold
	@$(GO) run ./bench/warm
	@$(GO) run ./bench/live
	@$(GO) run ./bench/diff
	@if [ "$$(id -u)" = 0 ]; then $(GO) run ./bench/promote; else echo "bench/promote needs root to mount what it measures on"; fi

clean: ## remove what the build made
	rm -rf bin build $(BOXINIT)
