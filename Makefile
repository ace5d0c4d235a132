# Muster's commands. `make help` lists them; `make test` is what .ci/run calls.
CARGO ?= cargo
ARGS ?=
# nextest where it is installed; its closing line counts tests just the same.
RUN_TESTS := $(if $(shell $(CARGO) nextest --version 2>/dev/null),nextest run --no-fail-fast,test --no-fail-fast)
RELEASE := --release --locked

.PHONY: help build demo test full lint bench clean

help: ## This list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

build: ## muster-agent, muster-coordinator and musterctl, in target/release
	$(CARGO) build --release --workspace --bins

demo: build ## A whole fleet on this computer: make demo ARGS="--workers 12 --crash"
	target/release/musterctl demo $(ARGS)

test: build ## Everything that is checked on every change (release build, 2,000 simulator seeds, planted bugs)
	$(CARGO) $(RUN_TESTS) $(RELEASE) --workspace
	$(CARGO) $(RUN_TESTS) $(RELEASE) -p muster-tests --features plants --test plants

full: test ## And what takes longer: 20,000 seeds, more kills, throughput against curl
	MUSTER_SIM_SEEDS=20000 $(CARGO) $(RUN_TESTS) $(RELEASE) -p muster-tests --test simulator
	$(CARGO) bench -p muster-tests --bench download

bench: ## The downloader's throughput against curl | tee | sha256sum, in one run
	$(CARGO) bench -p muster-tests --bench download

lint: ## Formatting, clippy without warnings, licences and bans
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --offline check bans licenses sources; \
	else echo "cargo-deny is not installed: licences and bans were not checked (cargo install cargo-deny)"; fi

clean: ## Remove what was built
	$(CARGO) clean
