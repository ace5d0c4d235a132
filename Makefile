# Muster's commands. `make help` lists them; `make test` is what .ci/run calls.
CARGO ?= cargo
ARGS ?=
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

# One release build serves demo, tests, packages and the image: programs linked statically, so that they run in an
# empty image and on every distribution. Cargo must be told the target, though it is this machine's own: without one it
# would link build scripts and procedural macros statically too, which cannot be. Always the whole workspace: a part of
# it would switch on fewer features of shared libraries, and compile them once more.
TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
# Panics and logs name source files: not by where this machine has them.
SOURCES := --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=cargo --remap-path-prefix=$(CURDIR)=muster
STATIC := CARGO_BUILD_TARGET=$(TARGET) RUSTFLAGS="$(RUSTFLAGS) -C target-feature=+crt-static $(SOURCES)" $(CARGO)
RELEASE := --release --locked --workspace
PROGRAMS := muster-agent muster-coordinator musterctl muster-demo

# Half of them wait, for time limits and for programs they started: two for each core keep it busy.
export NEXTEST_TEST_THREADS := $(shell echo $$((2 * $$(nproc))))
export RUST_TEST_THREADS := $(NEXTEST_TEST_THREADS)

# nextest where it is installed; its closing line counts tests just the same.
RUN_TESTS := $(if $(shell $(CARGO) nextest --version 2>/dev/null),nextest run --no-fail-fast,test --no-fail-fast)

IMAGE := muster-coordinator:$(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# Half of the seeds that the simulator looks at move on with the commit. Given by hand it is the same run again.
ifndef MUSTER_SIM_START
MUSTER_SIM_START := $(shell printf '%d' 0x$$(git rev-parse HEAD 2>/dev/null | grep -o '^.\{12\}' || echo 3e8))
endif
export MUSTER_SIM_START
HOURS ?= 1

# Tests with figures that are held against what is promised where nothing runs beside them.
FIGURES := sixty_workers defaults_and_a_directory idle_agent

# Two fleets serve all tests of nodes: nextest would run each in a process, and a fleet, of its own.
NODES := target/release/test-nodes

SEEDED_BUGS = $(RELEASE) --features muster-tests/seeded-bugs --test seeded_bugs

# What the parts of `make test` said, each in a file; tests/test-summary counts it.
SAID := target/said
said = 2>&1 | tee $(SAID)/$(1)

.PHONY: help build static-libc test-tools demo packages image node-image demo-nodes demo-nodes-down test \
	docs compile-tests soak test-programs test-seeded-bugs test-packages compile-nodes test-nodes test-nodes-down test-machine \
	kubeconfig-given test-kubernetes full lint bench bench-fleet clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

static-libc:
	@test "$$(cc -print-file-name=libc.a)" != libc.a || { \
	echo "The programs are linked statically, and there is no libc.a: dnf install glibc-static" >&2; exit 1; }

build: static-libc ## muster-agent, muster-coordinator, musterctl and its demo, in target/release
	$(STATIC) build $(RELEASE) --bins
	@mkdir -p target/release
	@ln -f $(PROGRAMS:%=target/$(TARGET)/release/%) target/release/

demo: build ## A whole fleet on this computer: make demo ARGS="--workers 12 --crash"
	target/release/musterctl demo $(ARGS)

packages: build ## .deb and .rpm of all three, in target/packages (needs debhelper and rpm)
	packaging/build $(TARGET)

image: packages ## The coordinator's image, muster-coordinator:VERSION (needs Docker)
	docker build --quiet --file packaging/Containerfile --tag $(IMAGE) target/packages/image

docs: build ## The book, in target/book, with its links checked (fetches mdbook where there is none)
	docs/build

test-tools:
	@tests/set-up

# The fleets of nodes take longest, and wait more than they work. So what they need is made first; tests are compiled and
# run beside them, and then programs with seeded bugs. Without a Docker Engine: no nodes.
test: test-tools ## What every change is checked with: tests, simulator, seeded bugs, packages, systemd nodes
	@rm -rf $(SAID)
	@docker=$$(docker info >/dev/null 2>&1 && echo yes); set -e; \
	$(MAKE) --jobs=4 BEFORE_TESTS="packages $${docker:+compile-nodes}" BEFORE_SEEDED_BUGS=compile-tests \
		$${docker:+test-nodes} test-programs test-seeded-bugs test-packages || { tail --lines=12 $(SAID)/*; exit 2; }
	@tests/test-summary $(SAID)

$(SAID):
	@mkdir -p $@

compile-tests: build | $(BEFORE_TESTS)
	nice env $(STATIC) test --no-run $(RELEASE)

test-programs: compile-tests | $(SAID) ## Unit and end-to-end tests, and the simulator
	@echo "simulator: half of the seeds begin at MUSTER_SIM_START=$(MUSTER_SIM_START)"
	$(STATIC) $(RUN_TESTS) $(RELEASE) $(call said,tests)

test-seeded-bugs: | $(SAID) $(BEFORE_SEEDED_BUGS) ## Does the simulator find each seeded bug?
	nice env $(STATIC) $(RUN_TESTS) $(SEEDED_BUGS) $(call said,seeded-bugs)

test-packages: packages | $(SAID) ## What the packages hold (needs lintian and rpm)
	packaging/check $(call said,packages)

# Made here, where it is seen, and not by the tests themselves, which have little patience with commands.
node-image:
	tests/nodes/image/build

# Cargo says in JSON where it puts a program. Run by its name, it waits for nobody else who compiles.
compile-nodes: build
	@rm -f $(NODES)
	$(STATIC) test $(RELEASE) --test nodes --no-run --message-format=json-render-diagnostics | \
	sed -n 's/.*"name":"nodes".*"executable":"\([^"]*\)".*/\1/p' | xargs -I {} ln -f {} $(NODES)

test-nodes: packages node-image compile-nodes | $(SAID) ## A fleet of systemd nodes in containers, and what can go wrong (needs Docker and mmdebstrap)
	$(NODES) $(ARGS) $(call said,nodes)

test-machine: packages ## A machine with a kernel of its own (needs qemu-system-x86, mmdebstrap and root)
	tests/machine/image/build
	$(STATIC) test $(RELEASE) --test machine -- --nocapture

# Said before anything is built.
kubeconfig-given:
	@test -n "$(KUBECONFIG)" || { echo "usage: make test-kubernetes KUBECONFIG=FILE [ARGS='SCENARIO...' | \
	ARGS=--clean-up]: FILE is an administrator's kubeconfig for a cluster without nodes" >&2; exit 2; }

# Cargo starts it in another folder: the path must be absolute.
test-kubernetes: kubeconfig-given build ## Updates under a real Kubernetes cluster without nodes: test-kubernetes KUBECONFIG=FILE
	$(STATIC) test $(RELEASE) --test cluster -- $(abspath $(KUBECONFIG)) $(CURDIR)/target/test-kubernetes $(ARGS)

demo-nodes: packages node-image compile-nodes ## Such a fleet to play with: demo-nodes-down removes it
	$(NODES) --demo
	docker exec --interactive $$(test -t 0 && echo --tty) muster-demo-operator musterctl watch demo

# What Docker has of a fleet of nodes bears the fleet's name as a label.
remove-fleet = docker ps --all --quiet --filter label=$(1) | xargs --no-run-if-empty docker rm --force --volumes; \
	docker network ls --quiet --filter label=$(1) | xargs --no-run-if-empty docker network rm; \
	docker volume ls --quiet --filter label=$(1) | xargs --no-run-if-empty docker volume rm

demo-nodes-down: ## Remove the fleet of demo-nodes
	$(call remove-fleet,muster-demo)

test-nodes-down: ## Remove what a test-nodes left that was ended in its middle
	$(call remove-fleet,muster-test)
	$(call remove-fleet,muster-test-2)

full: test ## And what takes longer: 20,000 seeds, figures, a machine in qemu, throughput against curl
	MUSTER_SIM_SEEDS=20000 $(STATIC) $(RUN_TESTS) $(RELEASE) --test simulator
	MUSTER_TEST_ALONE=1 $(STATIC) test $(RELEASE) --test e2e -- --nocapture --test-threads=1 $(FIGURES)
	$(MAKE) test-machine
	$(MAKE) bench

soak: ## The simulator goes on from a random seed: make soak HOURS=8 (START=N goes on from there)
	$(STATIC) test $(RELEASE) --test soak -- $(CURDIR)/target/soak $(HOURS) $(START)

bench: build ## The downloader's throughput against curl | tee | sha256sum; what a thousand machines cost the coordinator
	$(STATIC) bench --locked --workspace --bench download --bench fleet

# PARTS of a run are ARGS: idle, reads, storm; AGENTS, CLUSTERS, ITEM_MS and more come from the environment.
bench-fleet: build ## Thousands of agents in one process against a real coordinator: bench-fleet AGENTS=1000 ARGS="idle storm"
	$(STATIC) bench --locked --workspace --bench load -- $(ARGS)

# In the release profile: what build scripts and procedural macros need is compiled for the tests too.
lint: ## Formatting, clippy without warnings, licences and bans
	$(CARGO) fmt --all -- --check
	$(STATIC) clippy $(RELEASE) --all-targets --all-features -- -D warnings
	$(STATIC) clippy $(RELEASE) --all-features --test nodes --test machine --test soak --test cluster -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --offline check bans licenses sources; \
	else echo "cargo-deny is not installed: licences and bans were not checked (cargo install cargo-deny)"; fi

clean: ## Remove what was built
	$(CARGO) clean
