# Targets for people and for CI. Needs Go and make; what a target needs besides, it
# says. Use: make -f xcaddy.mk <target>

GO ?= go

# Database drivers of Caddy's certificate authority that nothing here uses.
TAGS := nobadger,nomysql,nopgx

CADDY_VERSION = $(shell $(GO) list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)

# Not a tool of go.mod: with its hundreds of requirements there, everybody who
# builds Caddy with this module would get their versions, too.
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# -race needs cgo and a C compiler. Go turns cgo off where it finds none.
RACE = $(shell [ "$$($(GO) env CGO_ENABLED)" = 1 ] && command -v $$($(GO) env CC) >/dev/null 2>&1 && echo -race)

# The packages that know nothing of Caddy.
PURE := ./slotlog/... ./fleet/... ./linkf/...

# The simulation of linkf, which is played without the race detector.
SCHEDULES := ^TestNothingIsLostRepeatedOrLeftUnderAnySchedule$$

BUILD := build
NOTES := $(BUILD)/left-out
FUZZTIME ?= 30s
BREAKS ?= 10000

.DEFAULT_GOAL := help
.NOTPARALLEL:

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: ## an edge on http://localhost:8088, for the servers in $LLAMA_NODES or three stand-ins
	$(GO) build -tags $(TAGS) -o $(BUILD)/caddy ./caddymodule/cmd/caddy
	@exec $(BUILD)/caddy fleet demo

.PHONY: build
build: ## ./caddy, built with xcaddy from this checkout
	$(GO) tool xcaddy build $(CADDY_VERSION) --output ./caddy --with github.com/slotfleet/slotfleet@v0.0.0=.

.PHONY: test test-begin test-static test-pure test-caddy test-end
test: test-begin test-static test-pure test-caddy test-end ## everything that CI runs

test-begin:
	@mkdir -p $(BUILD) && : >$(NOTES)
	@if [ -z "$(RACE)" ]; then \
		echo "no C compiler: the race detector is left out"; \
		echo "race detector (no C compiler)" >>$(NOTES); \
	fi

test-static:
	$(GO) vet -tags $(TAGS) ./...
	@echo "$(GO) tool gofumpt -l ."; \
	list=$$($(GO) tool gofumpt -l .) || exit 1; \
	if [ -n "$$list" ]; then echo "not formatted by gofumpt:"; echo "$$list"; exit 1; fi
	$(GO) tool staticcheck -tags $(TAGS) ./...
	$(GO) mod tidy -diff
	$(GO) mod verify

test-pure:
	@$(call gotest,pure,$(RACE) -timeout 10m $(PURE))
	@if [ -n "$(RACE)" ]; then $(call gotest,schedules,-timeout 5m -run '$(SCHEDULES)' ./linkf); fi

# One package at a time: what is measured in one must not wait for the other.
test-caddy:
	@$(call gotest,caddy,$(RACE) -timeout 15m -p 1 . ./caddymodule/...)

test-end:
	@if [ -s $(NOTES) ]; then \
		echo "left out: $$(sort -u $(NOTES) | paste -s -d ';' - | sed 's/;/; /g')"; \
	else \
		echo "left out: nothing"; \
	fi

# gotest runs tests and keeps their whole output in a file: what failed, or what was
# skipped and why, is shown. A test that needs a tool which is not there skips with
# "left out: <tool>". Tests of real servers have a target of their own.
define gotest
	echo "$(GO) test $(2)"; \
	$(GO) test -v -tags $(TAGS) -shuffle=on -skip '^TestReal' $(2) >$(BUILD)/$(1).log 2>&1; code=$$?; \
	if [ $$code != 0 ]; then \
		grep -v -E '^=== (RUN|PAUSE|CONT|NAME)|^ *--- PASS' $(BUILD)/$(1).log; \
		echo "the whole output is in $(BUILD)/$(1).log"; exit $$code; \
	fi; \
	grep -E '^(ok|\?) ' $(BUILD)/$(1).log; \
	grep -B 1 -E '^ *--- SKIP' $(BUILD)/$(1).log | grep -v -E '^(===|--$$)' || true; \
	grep -o 'left out: .*' $(BUILD)/$(1).log | sed 's/^left out: //' >>$(NOTES) || true
endef

.PHONY: lint
lint: ## golangci-lint (fetched on first use)
	$(GO) run $(GOLANGCI) run ./...

.PHONY: bench
bench: ## all benchmarks
	$(GO) test -tags $(TAGS) -run '^$$' -bench . -benchmem -p 1 ./...

.PHONY: soak
soak: ## every kind of answer while $BREAKS (10000) nodes are lost, and links through 50 reloads (about 15 minutes)
	@mkdir -p $(BUILD); \
	$(GO) test -v -count=1 -tags $(TAGS) -timeout 60m -run '^(TestNothingIsLostOrRepeatedInManyBreaks|TestLinksOverHTTPSSurviveReloadsUnderLoad)$$' ./caddymodule -args -breaks $(BREAKS) -reloads 50 >$(BUILD)/soak.log 2>&1; code=$$?; \
	grep -v '^=== ' $(BUILD)/soak.log; \
	exit $$code

.PHONY: sim
sim: ## the study of placements on simulated fleets, as docs/placement.md has it (about 10 minutes)
	@mkdir -p $(BUILD); \
	$(GO) test -v -count=1 -tags $(TAGS) -timeout 60m -run '^(TestStudy|TestWrongSpeeds)' ./fleet -args -study >$(BUILD)/sim.log 2>&1; code=$$?; \
	grep -v '^=== ' $(BUILD)/sim.log; \
	exit $$code

.PHONY: fuzz
fuzz: ## each fuzz target for $FUZZTIME (30s), and a million schedules of linkf
	$(GO) test -v -count=1 -timeout 60m -run '$(SCHEDULES)' ./linkf -args -schedules 1000000
	@for pkg in $$($(GO) list -tags $(TAGS) ./...); do \
		for f in $$($(GO) test -tags $(TAGS) -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "$$pkg $$f"; \
			$(GO) test -tags $(TAGS) -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

.PHONY: test-real
test-real: ## end to end against real servers: LLAMA_SERVER=<llama-server binary> LLAMA_MODEL=<gguf file>
	@server='$(LLAMA_SERVER)'; model='$(LLAMA_MODEL)'; \
	if [ ! -x "$$server" ] || [ ! -f "$$model" ]; then \
		echo "test-real needs a llama-server and a model:"; \
		echo "  make -f xcaddy.mk test-real LLAMA_SERVER=/path/to/llama-server LLAMA_MODEL=/path/to/model.gguf"; \
		[ -n "$$server" ] && [ ! -x "$$server" ] && echo "LLAMA_SERVER: $$server is no program"; \
		[ -n "$$model" ] && [ ! -f "$$model" ] && echo "LLAMA_MODEL: $$model is no file"; \
		exit 1; \
	fi; \
	case "$$server" in /*) ;; *) server="$(CURDIR)/$$server" ;; esac; \
	case "$$model" in /*) ;; *) model="$(CURDIR)/$$model" ;; esac; \
	mkdir -p $(BUILD); \
	SLOTFLEET_LLAMA_SERVER="$$server" SLOTFLEET_LLAMA_MODEL="$$model" \
		$(GO) test -v -count=1 -tags $(TAGS) -timeout 30m -p 1 -run '^TestReal' ./... >$(BUILD)/real.log 2>&1; code=$$?; \
	grep -v -E '^=== |no test(s to run| files)' $(BUILD)/real.log; \
	if [ $$code = 0 ] && ! grep -q '^--- PASS: TestReal' $(BUILD)/real.log; then \
		echo "no test of real servers ran"; exit 1; \
	fi; \
	exit $$code

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BUILD) ./caddy
